//! May an answer to one question be given to another that a vector takes for the same?
//!
//! Vectors hardly show what turns a question round: a `not`, another number, another name, `on` for `off`, two names exchanged. So the words
//! decide too, and the rule is a refusal: two questions are alike only if they agree in every word but those that carry no meaning of their
//! own (`words.rs` lists them: articles, politeness, ways to ask), in their order, and in what they quote. Words are compared without case,
//! plural and tense; a number is one whether in digits or spelled; synonyms that are always exchangeable count as one word. What the lists
//! do not know, be it a name or another language, must be the same.
//!
//! So what two questions must agree in is a value of each, and equal values are found by name: only questions that are alike are ever
//! compared by their vectors, however many a project has.

mod words;

use sha2::{Digest, Sha256};
use std::iter::Peekable;
use std::str::Chars;

/// What a question asks, by its words: the answer to one may be given to the other only if it is the same of both. `None`: it says nothing
/// of its own, and is alike to none.
#[must_use]
pub fn reading(question: &str) -> Option<[u8; 32]> {
    let Reading { specific, quoted } = Reading::of(question);
    if specific.is_empty() {
        return None;
    }
    let mut hash = Sha256::new();
    for list in [specific, quoted] {
        hash.update((list.len() as u64).to_le_bytes());
        for text in list {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
    }
    Some(hash.finalize().into())
}

/// What a question says.
#[derive(Debug, PartialEq, Eq)]
struct Reading {
    /// The words that must be the same, in their order.
    specific: Vec<String>,
    /// What stands in quotes, literally.
    quoted: Vec<String>,
}

impl Reading {
    fn of(text: &str) -> Self {
        let (text, quoted) = without_quotes(text);
        let mut words = Vec::new();
        for chunk in text.split_whitespace() {
            expand(chunk, &mut words);
        }
        let mut specific = Vec::new();
        let mut owner = None;
        let mut words = words.iter().map(String::as_str).peekable();
        while let Some(word) = words.next() {
            let mut follows = |next: &[&str]| words.peek().is_some_and(|word| next.contains(word));
            // "the best way" asks for no more than "the way", and a capital is a city.
            if word == "best" && follows(&["way", "ways", "method"]) {
                continue;
            }
            if word == "capital" && follows(&["city"]) {
                words.next();
            }
            if words::LOOSE.contains(&word) {
                continue;
            }
            match word.strip_suffix("'s") {
                // `France's capital` is the `capital of France`.
                Some(noun) => specific.extend(owner.replace(words::same(noun))),
                None => {
                    specific.push(words::same(word));
                    specific.extend(owner.take());
                }
            }
        }
        specific.extend(owner);
        Self { specific, quoted }
    }
}

/// The text with what stands in quotes taken out. An apostrophe is none: a single quote opens only before a word and closes only behind one.
fn without_quotes(text: &str) -> (String, Vec<String>) {
    const PAIRS: [(char, char); 8] = [('"', '"'), ('`', '`'), ('“', '”'), ('„', '“'), ('«', '»'), ('‘', '’'), ('「', '」'), ('\'', '\'')];
    let (mut rest, mut quoted) = (String::new(), Vec::new());
    let mut chars = text.chars().peekable();
    let mut before = ' ';
    while let Some(letter) = chars.next() {
        let closing =
            PAIRS.iter().find(|(open, _)| *open == letter && (*open != '\'' || !before.is_alphanumeric())).map(|(_, close)| *close);
        if let Some(inside) = closing.and_then(|closing| up_to(&mut chars, closing)) {
            quoted.push(inside);
            rest.push(' ');
            before = ' ';
        } else {
            rest.push(letter);
            before = letter;
        }
    }
    (rest, quoted)
}

/// Takes what stands before the closing quote; nothing if there is none.
fn up_to(chars: &mut Peekable<Chars<'_>>, closing: char) -> Option<String> {
    let mut ahead = chars.clone();
    let mut inside = String::new();
    while let Some(letter) = ahead.next() {
        if letter == closing && (closing != '\'' || ahead.peek().is_none_or(|next| !next.is_alphanumeric())) {
            *chars = ahead;
            return Some(inside);
        }
        inside.push(letter);
    }
    None
}

/// The words of a chunk without white space, in lower case; a possessive keeps its `'s`.
fn expand(chunk: &str, words: &mut Vec<String>) {
    let word = chunk.to_lowercase().replace('’', "'");
    // What may stand at the ends of a word and mean something: `C++`, `C#`, `50%`, `$5`, `-3`, `.env`.
    let word = word.trim_end_matches(|letter: char| !letter.is_alphanumeric() && !"'+#%°$€£*".contains(letter));
    let word = word.trim_start_matches(|letter: char| !letter.is_alphanumeric() && !"$€£-+.#@/<>=*~^".contains(letter));
    if !word.contains(char::is_alphanumeric) {
        // An operator of its own is a word too.
        if chunk.chars().all(|letter| "+-*/<>=^%&|~!".contains(letter)) && chunk != "!" {
            words.push(chunk.to_owned());
        }
        return;
    }
    match word.split_once('\'') {
        _ if word == "can't" => words.extend(["can".into(), "not".into()]),
        _ if word == "cannot" => words.extend(["can".into(), "not".into()]),
        _ if word == "won't" => words.extend(["will".into(), "not".into()]),
        Some((verb, "t")) if verb.ends_with('n') => words.extend([verb.trim_end_matches('n').to_owned(), "not".into()]),
        Some((noun, "ll")) => words.extend([plain(noun), "will".into()]),
        Some((noun, "s")) if words::LOOSE.contains(&noun) || words::ASKING.contains(&noun) => words.push(noun.to_owned()),
        Some((noun, "re" | "m" | "ve" | "d")) => words.push(plain(noun)),
        Some((noun, "s" | "")) => words.push(format!("{}'s", plain(noun))),
        _ => words.push(plain(word)),
    }
}

/// `e-mail` is `email`, and `1,000` is `1000`.
fn plain(word: &str) -> String {
    let alphabetic = word.chars().all(|letter| letter.is_alphabetic() || letter == '-');
    let grouped = word.contains(',') && word.chars().all(|letter| letter.is_ascii_digit() || matches!(letter, ',' | '.' | '$' | '€' | '£'));
    match (alphabetic, grouped) {
        (true, _) => word.replace('-', ""),
        (_, true) => word.replace(',', ""),
        _ => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alike(one: &str, other: &str) -> bool {
        reading(one).is_some() && reading(one) == reading(other)
    }

    #[test]
    fn what_asks_the_same_is_alike() {
        for (one, other) in [
            ("How do I reset my password?", "how can I reset my password"),
            ("How do I reset my password?", "Please tell me the best way to reset my password."),
            ("What is the capital of France?", "What's France's capital city?"),
            ("What is the capital of France?", "Can you tell me what the capital of France is?"),
            ("How do I buy a car?", "How can I purchase an automobile?"),
            ("How many days are there in 2 weeks?", "How many days are in two weeks?"),
            ("Why is the sky blue?", "Could you explain why the sky is blue?"),
            ("How do I delete a file in Linux?", "How to remove files in linux"),
        ] {
            assert!(alike(one, other) && alike(other, one), "{one} / {other}: {:?} {:?}", Reading::of(one), Reading::of(other));
        }
    }

    #[test]
    fn what_turns_a_question_round_is_told() {
        for (one, other) in [
            ("Turn on the lights", "Turn off the lights"),
            ("Is aspirin safe for dogs?", "Is aspirin not safe for dogs?"),
            ("Is aspirin safe for dogs?", "Isn't aspirin safe for dogs?"),
            ("Can I eat this?", "Can't I eat this?"),
            ("What is 5 + 3?", "What is 5 - 3?"),
            ("Convert 10 miles to kilometers", "Convert 10 kilometers to miles"),
            ("Convert 10 miles to kilometers", "Convert 11 miles to kilometers"),
            ("What costs $5?", "What costs €5?"),
            ("Is a dog bigger than a cat?", "Is a cat bigger than a dog?"),
            ("Who is Paris Hilton?", "Who is Perez Hilton?"),
            ("who is the president of france", "who is the president of germany"),
            ("When was Einstein born?", "Where was Einstein born?"),
            ("Who is the president?", "Who was the president?"),
            ("What is my name?", "What is your name?"),
            ("What does \"bank\" mean?", "What does \"river\" mean?"),
            ("What does 'bank' mean?", "What does 'river' mean?"),
            ("Run `ls`", "Run `rm`"),
            ("What is C?", "What is C++?"),
            ("Is it possible?", "Is it impossible?"),
            ("What is the capital of France?", "¿Cuál es la capital de Francia?"),
            ("Ist das sicher?", "Ist das nicht sicher?"),
            ("今天天气怎么样", "明天天气怎么样"),
            ("Flights from Paris to London", "Flights from London to Paris"),
            ("Does 3 < 5?", "Does 3 > 5?"),
            ("The mother of the king's wife", "The wife of the king's mother"),
            ("How are you?", "What is it?"),
            ("The father of the bride", "The father's bride"),
            ("Say yes \"no\"", "Say yes no"),
            ("ab c", "a bc"),
        ] {
            assert!(!alike(one, other), "{one} / {other}: {:?} {:?}", Reading::of(one), Reading::of(other));
        }
    }

    #[test]
    fn no_pair_that_asks_something_else_is_alike() {
        let mut kind = "";
        for line in include_str!("../../../tests/tests/near/pairs.txt").lines().filter(|line| !line.starts_with("# ")) {
            kind = line.strip_prefix("## ").unwrap_or(kind);
            let Some((one, other)) = line.split_once(" || ") else { continue };
            assert!(kind == "paraphrase" || !alike(one, other), "{kind}: {line}");
        }
    }

    #[test]
    fn an_apostrophe_is_no_quote() {
        assert_eq!(without_quotes("don't say it's Ann's").1, Vec::<String>::new());
        assert_eq!(without_quotes("say 'it's here' now").1, ["it's here"]);
        assert_eq!(without_quotes("an \"open end").1, Vec::<String>::new());
    }
}
