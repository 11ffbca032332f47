//! Answers that follow from the request: its mirror image, the tool calls it orders, thinking; and stop sequences.

use super::behaviour::Answer;
use super::call::{Call, messages, texts};
use serde_json::Value;

/// Bytes that only survive if nobody looks into them.
const SIGNATURE: &str = "Er8BCkYI+/mock//signature+==";

/// How an answer follows from the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Script {
    /// The text is the request's body.
    Mirror,
    /// Each line `call NAME {…}` of the user becomes a tool call; to the calls' results the answer is `Results: …`.
    Tools,
    /// Thinks before it answers.
    Thinking,
}

/// A piece of an answer, whatever the dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Thinking { text: String, signature: &'static str },
    Text(String),
    Call { id: String, name: String, arguments: String },
}

impl Part {
    /// What counts as output.
    pub fn text(&self) -> &str {
        match self {
            Self::Thinking { text, .. } | Self::Text(text) | Self::Call { arguments: text, .. } => text,
        }
    }
}

impl Call {
    /// The pieces of the answer.
    pub fn parts(&self, answer: &Answer) -> Vec<Part> {
        let said = || Part::Text(self.text(answer));
        match answer.script {
            None => vec![said()],
            Some(Script::Mirror) => vec![Part::Text(self.body.to_string())],
            Some(Script::Thinking) => {
                vec![Part::Thinking { text: format!("They said: {}", self.last_user()), signature: SIGNATURE }, said()]
            }
            Some(Script::Tools) => match (self.results(), self.orders()) {
                (results, _) if !results.is_empty() => vec![Part::Text(format!("Results: {}", results.join(", ")))],
                (_, orders) if orders.is_empty() => vec![said()],
                (_, orders) => [Part::Text("Let me look.".into())].into_iter().chain(orders).collect(),
            },
        }
    }

    /// The stop sequence of the request that ends `text`, and where.
    pub fn stopped(&self, text: &str) -> Option<(usize, String)> {
        let mut sequences = Vec::new();
        for member in ["stop", "stop_sequences"] {
            texts(self.body.get(member).unwrap_or(&Value::Null), &mut sequences);
        }
        sequences.into_iter().filter_map(|sequence| Some((text.find(&sequence)?, sequence))).min()
    }

    /// The calls that lines of the last user message order.
    fn orders(&self) -> Vec<Part> {
        let lines = self.last_user.iter().flat_map(|text| text.lines());
        let orders = lines.filter_map(|line| line.trim().strip_prefix("call ")?.split_once(' '));
        let call = |(number, (name, arguments)): (usize, (&str, &str))| Part::Call {
            id: format!("call_mock_{number}"),
            name: name.into(),
            arguments: arguments.into(),
        };
        orders.enumerate().map(call).collect()
    }

    /// The results of tools that the request ends with.
    fn results(&self) -> Vec<String> {
        let mut results = Vec::new();
        let messages: Vec<&Value> = messages(&self.body).collect();
        let asked = |message: &&Value| is(message, "role", "assistant") || is(message, "type", "function_call");
        for message in messages.rsplit(asked).next().unwrap_or_default() {
            let content = message.get("content").unwrap_or(&Value::Null);
            let blocks = content.as_array().map(Vec::as_slice).unwrap_or_default();
            let of_tools = blocks.iter().filter(|block| is(block, "type", "tool_result")).filter_map(|block| block.get("content"));
            let told = Some(content).filter(|_| is(message, "role", "tool"));
            let output = message.get("output").filter(|_| is(message, "type", "function_call_output"));
            for content in told.into_iter().chain(of_tools).chain(output) {
                let mut of_one = Vec::new();
                texts(content, &mut of_one);
                results.push(of_one.join(" "));
            }
        }
        results
    }
}

fn is(value: &Value, member: &str, text: &str) -> bool {
    value.get(member).and_then(Value::as_str) == Some(text)
}

/// A text in two.
pub(super) fn halves(text: &str) -> [&str; 2] {
    let middle = (text.len() / 2..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    <[&str; 2]>::from(text.split_at(middle))
}
