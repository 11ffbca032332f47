//! What commands print.

use clap::ValueEnum;
use serde_json::{Map, Value};
use std::io::Write;

/// The forms.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Output {
    /// Indented JSON.
    Json,
    /// Columns, for people.
    Table,
}

/// Prints an answer to standard output; a closed pipe is nobody's fault.
pub fn print(answer: Option<&Value>, output: Output) {
    let text = match (answer, output) {
        (None, _) => return,
        (Some(answer), Output::Json) => format!("{answer:#}\n"),
        (Some(answer), Output::Table) => table(answer),
    };
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// A list as a row each; anything else as a row a field.
fn table(answer: &Value) -> String {
    let Some(object) = answer.as_object() else { return format!("{answer}\n") };
    let list = match object.values().next() {
        Some(Value::Array(items)) if object.len() == 1 => items.iter().filter_map(Value::as_object).collect::<Vec<_>>(),
        _ => return aligned(&object.iter().map(|(name, value)| vec![name.clone(), cell(value)]).collect::<Vec<_>>()),
    };
    let Some(first) = list.first() else { return "none\n".to_owned() };
    let columns: Vec<&String> = id_first(first);
    let mut rows = vec![columns.iter().map(|name| name.to_uppercase()).collect::<Vec<_>>()];
    rows.extend(list.iter().map(|item| columns.iter().map(|name| item.get(*name).map_or_else(String::new, cell)).collect()));
    aligned(&rows)
}

fn id_first(object: &Map<String, Value>) -> Vec<&String> {
    let mut columns: Vec<_> = object.keys().collect();
    columns.sort_by_key(|name| (!matches!(name.as_str(), "id" | "source" | "provider"), name.as_str() != "name"));
    columns
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Object(members) => {
            let members: Vec<_> = members.iter().filter(|(_, value)| !value.is_null()).collect();
            let shown = members.iter().map(|(name, value)| format!("{name}={}", cell(value)));
            if members.is_empty() { "-".to_owned() } else { shown.collect::<Vec<_>>().join(" ") }
        }
        Value::Array(items) if items.is_empty() => "-".to_owned(),
        Value::Array(items) => items.iter().map(cell).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

fn aligned(rows: &[Vec<String>]) -> String {
    let mut widths = Vec::new();
    for row in rows {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &Vec<String>| {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}", width = *width)).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_list_is_a_row_each_with_the_id_first() {
        let answer = json!({"keys": [
            {"allowed_models": [], "ceilings": {"calls_per_hour": 10, "tokens_per_minute": null}, "id": "key_1", "name": "a"},
            {"allowed_models": ["m", "n"], "ceilings": {}, "id": "key_22", "name": "b"},
        ]});
        assert_eq!(
            table(&answer),
            "ID      NAME  ALLOWED_MODELS  CEILINGS\n\
             key_1   a     -               calls_per_hour=10\n\
             key_22  b     m,n             -\n"
        );
        assert_eq!(table(&json!({"keys": []})), "none\n");
    }

    #[test]
    fn one_thing_is_a_row_a_field() {
        assert_eq!(table(&json!({"id": "a", "monthly_cap_usd": null})), "id               a\nmonthly_cap_usd  -\n");
    }
}
