//! What is known of English words. Whatever is not here must be the same in both questions.

/// Words that carry no meaning of their own in a question: they may come, go and be exchanged. None that can turn a question round may
/// stand here: no negation, no `off`, `out`, `up`, `from`, `before`, no possessive, no tense, no `who`, `when`, `where`, `why`, `many`, `should`.
pub const LOOSE: &[&str] = &[
    "a",
    "able",
    "about",
    "actually",
    "am",
    "an",
    "and",
    "answer",
    "any",
    "anybody",
    "anyone",
    "are",
    "as",
    "at",
    "basically",
    "be",
    "been",
    "being",
    "can",
    "could",
    "define",
    "describe",
    "details",
    "do",
    "does",
    "doing",
    "exactly",
    "explain",
    "for",
    "get",
    "getting",
    "give",
    "guide",
    "has",
    "have",
    "having",
    "hello",
    "help",
    "here",
    "hey",
    "hi",
    "how",
    "i",
    "in",
    "info",
    "information",
    "instruction",
    "instructions",
    "into",
    "is",
    "it",
    "its",
    "just",
    "kindly",
    "know",
    "let",
    "may",
    "me",
    "method",
    "methods",
    "might",
    "of",
    "on",
    "person",
    "please",
    "procedure",
    "question",
    "really",
    "show",
    "so",
    "some",
    "somebody",
    "someone",
    "step",
    "steps",
    "tell",
    "thank",
    "thanks",
    "that",
    "the",
    "there",
    "these",
    "this",
    "those",
    "to",
    "try",
    "trying",
    "understand",
    "us",
    "want",
    "way",
    "ways",
    "we",
    "what",
    "which",
    "with",
    "wonder",
    "wondering",
    "would",
    "you",
];

/// Words whose `'s` is `is`.
pub const ASKING: &[&str] = &["who", "when", "where", "why", "he", "she"];

/// Numbers as they are spelled.
const NUMBERS: &[(&str, &str)] = &[
    ("zero", "0"),
    ("one", "1"),
    ("two", "2"),
    ("three", "3"),
    ("four", "4"),
    ("five", "5"),
    ("six", "6"),
    ("seven", "7"),
    ("eight", "8"),
    ("nine", "9"),
    ("ten", "10"),
    ("eleven", "11"),
    ("twelve", "12"),
    ("thirteen", "13"),
    ("fourteen", "14"),
    ("fifteen", "15"),
    ("sixteen", "16"),
    ("seventeen", "17"),
    ("eighteen", "18"),
    ("nineteen", "19"),
    ("twenty", "20"),
    ("thirty", "30"),
    ("forty", "40"),
    ("fifty", "50"),
    ("sixty", "60"),
    ("seventy", "70"),
    ("eighty", "80"),
    ("ninety", "90"),
];

/// Words that can always stand for each other; the first stands for all. In their ground form.
const SYNONYMS: &[&[&str]] = &[
    &["buy", "purchase"],
    &["car", "automobile"],
    &["big", "large"],
    &["biggest", "largest"],
    &["bigger", "larger"],
    &["fastest", "quickest"],
    &["begin", "start", "commence"],
    &["fix", "repair"],
    &["photo", "picture", "photograph"],
    &["movie", "film"],
    &["child", "kid", "children"],
    &["delete", "remove", "erase"],
    &["choose", "select", "pick"],
    &["reduce", "decrease", "lower", "lessen"],
    &["increase", "raise"],
    &["lawyer", "attorney"],
    &["doctor", "physician"],
    &["holiday", "vacation"],
    &["quick", "fast", "rapid"],
    &["ill", "sick"],
    &["happen", "occur"],
    &["job", "occupation"],
    &["build", "construct"],
    &["assist", "aid"],
    &["prevent", "avoid"],
    &["main", "principal", "primary"],
    &["invent", "devise"],
    &["mobile", "cellphone", "smartphone"],
    &["tv", "television"],
    &["bike", "bicycle"],
    &["email", "mail"],
    &["app", "application"],
    &["make", "create"],
    &["work", "function"],
    &["use", "utilize", "utilise"],
    &["color", "colour"],
    &["center", "centre"],
    &["not", "no", "without", "never", "none", "neither", "nor"],
    &["and", "&"],
];

/// What a word counts as: its number, or the first of its synonyms, or its ground form.
pub fn same(word: &str) -> String {
    if let Some((_, digits)) = NUMBERS.iter().find(|(spelled, _)| *spelled == word) {
        return (*digits).to_owned();
    }
    let ground = ground(word);
    let group = SYNONYMS.iter().find(|group| group.contains(&word) || group.contains(&ground.as_str()));
    group.and_then(|group| group.first()).map_or(ground, |first| (*first).to_owned())
}

/// Without the endings of plural and tense, roughly. Wrong for some words, and then for both questions alike; it never joins two of which
/// one denies the other.
fn ground(word: &str) -> String {
    let cut = |ending: &str, least: usize| word.strip_suffix(ending).filter(|stem| stem.len() >= least && stem.is_ascii());
    if let Some(stem) = cut("ies", 2) {
        return format!("{stem}y");
    }
    for ending in ["sses", "shes", "ches", "xes"] {
        if let Some(stem) = cut(ending, 1) {
            return format!("{stem}{}", &ending.get(..ending.len() - 2).unwrap_or_default());
        }
    }
    if word.ends_with("ss") || word.ends_with("us") || word.ends_with("is") {
        return word.to_owned();
    }
    let stem = cut("ing", 3).or_else(|| cut("ed", 3)).or_else(|| cut("s", 3)).unwrap_or(word);
    // `stopped` and `stopping` are `stop`; `making` and `make` are `mak`.
    let mut letters = stem.chars().rev();
    let doubled = stem.len() < word.len() && letters.next().is_some_and(|last| Some(last) == letters.next() && !"lsz".contains(last));
    let stem = if doubled { stem.get(..stem.len() - 1).unwrap_or(stem) } else { stem };
    stem.strip_suffix('e').filter(|stem| stem.len() >= 3).unwrap_or(stem).to_owned()
}
