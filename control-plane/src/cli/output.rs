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
    /// Comma-separated values with a header line, for spreadsheets.
    Csv,
}

/// Prints an answer, or one field of it, to standard output; a closed pipe is nobody's fault.
///
/// # Errors
/// There is no such field.
pub fn print(answer: Option<&Value>, output: Output, field: Option<&str>) -> Result<(), String> {
    let Some(answer) = answer else { return Ok(()) };
    let text = match (field, output) {
        (Some(name), _) => bare(answer, name)?,
        (None, Output::Json) => format!("{answer:#}\n"),
        (None, Output::Table) => table(answer),
        (None, Output::Csv) => csv(answer),
    };
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

fn bare(answer: &Value, name: &str) -> Result<String, String> {
    let names = || answer.as_object().map(|object| object.keys().cloned().collect::<Vec<_>>().join(", ")).unwrap_or_default();
    let value = answer.get(name).ok_or_else(|| format!("done, but the answer has no field {name:?}, only: {}", names()))?;
    Ok(value.as_str().map_or_else(|| format!("{value}\n"), |text| format!("{text}\n")))
}

/// A list as a row each; anything else as a row a field.
fn table(answer: &Value) -> String {
    match rows(answer) {
        Rows::Of(_, rows) if rows.is_empty() => "none\n".to_owned(),
        Rows::Of(columns, rows) => {
            let header = columns.iter().map(|name| name.to_uppercase()).collect();
            aligned(&std::iter::once(header).chain(rows).collect::<Vec<_>>())
        }
        Rows::None(fields) => aligned(&fields),
    }
}

/// The same, quoted as RFC 4180 has it.
fn csv(answer: &Value) -> String {
    let quoted = |text: &String| match text.as_str() {
        "-" => String::new(),
        text if text.contains([',', '"', '\n', '\r']) => format!("\"{}\"", text.replace('"', "\"\"")),
        text => text.to_owned(),
    };
    let line = |cells: &Vec<String>| cells.iter().map(quoted).collect::<Vec<_>>().join(",") + "\r\n";
    match rows(answer) {
        Rows::Of(columns, rows) => std::iter::once(&columns).chain(&rows).map(line).collect(),
        Rows::None(fields) => fields.iter().map(line).collect(),
    }
}

/// What an answer has to show.
enum Rows {
    /// A list: its columns, and a row each.
    Of(Vec<String>, Vec<Vec<String>>),
    /// Anything else: a row a field.
    None(Vec<Vec<String>>),
}

fn rows(answer: &Value) -> Rows {
    let Some(object) = answer.as_object() else { return Rows::None(vec![vec![cell(answer)]]) };
    let list = object.values().find_map(Value::as_array).filter(|_| object.keys().all(|name| name == "next" || object[name].is_array()));
    let Some(list) = list else { return Rows::None(object.iter().map(|(name, value)| vec![name.clone(), cell(value)]).collect()) };
    let items: Vec<&Map<String, Value>> = list.iter().filter_map(Value::as_object).collect();
    let mut columns: Vec<String> = Vec::new();
    for name in items.iter().flat_map(|item| item.keys()) {
        if !columns.contains(name) {
            columns.push(name.clone());
        }
    }
    id_first(&mut columns);
    let row = |item: &&Map<String, Value>| columns.iter().map(|name| item.get(name).map_or_else(String::new, cell)).collect();
    let rows = items.iter().map(row).collect();
    Rows::Of(columns, rows)
}

/// What names a row stands before it.
fn id_first(columns: &mut [String]) {
    const NAMES: [&str; 8] = ["cursor", "id", "day", "model", "key", "source", "provider", "name"];
    columns.sort_by_key(|name| NAMES.iter().position(|first| first == name).unwrap_or(NAMES.len()));
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
    fn csv_quotes_what_needs_it() {
        let answer = json!({"rows": [{"source": "a,\"b\"", "calls": 3, "cost_usd": "0.25"}], "next": null});
        assert_eq!(csv(&answer), "source,calls,cost_usd\r\n\"a,\"\"b\"\"\",3,0.25\r\n");
    }

    #[test]
    fn a_field_is_printed_bare_and_a_wrong_name_tells_the_right_ones() {
        let answer = json!({"id": "key_1", "ceilings": {"calls_per_hour": 10}});
        assert_eq!(bare(&answer, "id").as_deref(), Ok("key_1\n"));
        assert_eq!(bare(&answer, "ceilings").as_deref(), Ok("{\"calls_per_hour\":10}\n"));
        assert_eq!(bare(&answer, "key"), Err("done, but the answer has no field \"key\", only: ceilings, id".to_owned()));
    }

    #[test]
    fn one_thing_is_a_row_a_field() {
        assert_eq!(table(&json!({"id": "a", "monthly_cap_usd": null})), "id               a\nmonthly_cap_usd  -\n");
    }
}
