//! Is an answer known to a question that is near enough? Part of the look-up: the vector is made between two round trips to the control
//! plane, and only where the exact answer is not stored and the limits would let the call in.

use super::call::Call;
use super::reserve;
use super::side::{self, Ask, Purpose};
use crate::cache_key::CacheScope;
use crate::deadline::Share;
use crate::dialect::text_tokens;
use crate::flow::Turn;
use crate::question::Question;
use crate::request::CacheMode;
use crate::snapshot::Entry;
use crate::stream::usage::number_in;
use crate::value::{json, written};
use crate::world::World;
use proxium_wire::{Admitted, Dialect, Embed, Endpoint, Near, Usage, Vector};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::rc::Rc;

/// A call must not wait long for what only may spare it.
pub(super) const TIMEOUT_MS: u64 = 2_000;
/// More numbers than any model's vector has.
const MAX_DIMENSIONS: usize = 8_192;

/// A call whose question may be compared.
#[derive(Debug)]
pub struct Comparing {
    /// The question.
    pub question: String,
    /// Everything in which two questions must agree to be compared, but the model.
    scope: CacheScope,
    entry: Rc<Entry>,
    threshold_ppm: u32,
    /// A near answer may be taken, and no vector was tried for.
    wants_vector: bool,
    vector: Vec<u8>,
}

impl Comparing {
    /// What the project, the catalog and the call allow.
    #[must_use]
    pub fn of(call: &Call) -> Option<Self> {
        let threshold_ppm = call.key.project_record.near_threshold_ppm?;
        let entry = model(call)?;
        if call.recalled.as_ref().is_some_and(|recalled| recalled.of_end_user) {
            return None;
        }
        let Question { text, rest } = Question::of(&call.body)?;
        // Vectors of two models are not to be compared.
        let rest = [b"near ", entry.model.name.as_bytes(), b" ", rest.as_slice()].concat();
        Some(Self {
            question: text,
            scope: CacheScope::new(&call.key.project, &call.head, &rest),
            entry,
            threshold_ppm,
            wants_vector: call.controls.cache == CacheMode::Use,
            vector: Vec::new(),
        })
    }

    /// The vector's side call, if one is to be tried for.
    #[must_use]
    pub fn embed(&self, call: &Call) -> Option<Embed> {
        self.wants_vector.then(|| Embed {
            id: side::id(call, Purpose::Embed),
            hold: side::hold(&self.entry, self.input_tokens(), 0),
            provider: self.entry.provider.name.clone(),
            model: self.entry.model.name.clone(),
        })
    }

    /// The question with its vector, once there is one.
    #[must_use]
    pub fn near(&self) -> Option<Near> {
        (!self.vector.is_empty()).then(|| Near {
            vector: self.vector.clone(),
            question: self.question.clone(),
            threshold_ppm: self.threshold_ppm,
        })
    }

    /// Among which questions this one stands, answered by `model`.
    #[must_use]
    pub fn partition(&self, model: &str) -> Vec<u8> {
        self.scope.key(model).to_vec()
    }

    /// What makes an answer of `model` findable.
    #[must_use]
    pub fn stored(&self, model: &str) -> Option<Vector> {
        let Near { vector, question, .. } = self.near()?;
        Some(Vector { partition: self.partition(model), vector, question })
    }

    fn input_tokens(&self) -> u64 {
        text_tokens(self.question.len() as u64)
    }

    fn ask(&self, call: &Call, world: &impl World) -> Option<Ask> {
        let most_ms = self.entry.model.timeout_ms.min(TIMEOUT_MS);
        let Share { timeout_ms, .. } = call.deadline.share(world.now_ms(), most_ms, true)?;
        let body = json!({"model": self.entry.model.upstream, "input": self.question, "encoding_format": "float"});
        Some(Ask {
            entry: self.entry.clone(),
            path: "/embeddings",
            body: written(&body).into_bytes(),
            input_tokens: self.input_tokens(),
            timeout_ms,
            own_timeout_ms: most_ms,
        })
    }
}

/// The model that compares texts, where the catalog has a usable one.
#[must_use]
pub fn model(call: &Call) -> Option<Rc<Entry>> {
    let entry = call.snapshot.entry(&call.snapshot.catalog.embeddings_model)?;
    (entry.serves(Endpoint::Embeddings) && entry.provider.dialect() == Dialect::Openai).then(|| entry.clone())
}

/// The money is held: makes the vector.
pub fn embed(mut call: Box<Call>, admitted: &Admitted, world: &impl World) -> Turn {
    if let Some(comparing) = &mut call.comparing {
        comparing.wants_vector = false;
    }
    let ask = call.comparing.as_ref().and_then(|comparing| comparing.ask(&call, world));
    side::start(call, Purpose::Embed, ask, admitted, world)
}

/// Asks for the admission again, now with the vector, or without any.
pub fn embedded(mut call: Box<Call>, vector: Option<Vec<u8>>, world: &impl World) -> Turn {
    if let (Some(comparing), Some(vector)) = (&mut call.comparing, vector) {
        comparing.vector = vector;
    }
    reserve::enter(call, world)
}

/// Reads a provider's answer: so many vectors as 32-bit floats, little-endian, and the usage if it is told.
#[must_use]
pub fn read(body: &[u8], count: usize) -> Option<(Vec<Vec<u8>>, Option<Usage>)> {
    #[derive(Deserialize)]
    struct Body<'a> {
        data: Vec<Datum>,
        #[serde(borrow)]
        usage: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Datum {
        index: Option<usize>,
        embedding: Vec<f32>,
    }
    let Body { data, usage } = crate::json::parse(body).ok()?;
    let has_direction = |vector: &[f32]| vector.iter().any(|number| *number != 0.0) && vector.iter().all(|number| number.is_finite());
    let usable = |datum: &Datum| datum.embedding.len() <= MAX_DIMENSIONS && has_direction(&datum.embedding);
    if data.len() != count || !data.iter().all(usable) {
        return None;
    }
    let usage = number_in(usage, "prompt_tokens").map(|input| Usage { input, ..Usage::default() });
    let mut vectors = vec![Vec::new(); count];
    for (at, datum) in data.into_iter().enumerate() {
        *vectors.get_mut(datum.index.unwrap_or(at))? = datum.embedding.iter().flat_map(|number| number.to_le_bytes()).collect();
    }
    (!vectors.iter().any(Vec::is_empty)).then_some((vectors, usage))
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn a_vector_is_read_or_it_is_none() {
        let (vectors, usage) = read(br#"{"data":[{"embedding":[1,-0.5]}],"usage":{"prompt_tokens":3}}"#, 1).unwrap();
        assert_eq!(vectors, [[1.0f32.to_le_bytes(), (-0.5f32).to_le_bytes()].concat()]);
        assert_eq!(usage.map(|usage| usage.input), Some(3));
        assert_eq!(read(br#"{"data":[{"embedding":[1]}]}"#, 1).unwrap().1, None);
        let two = read(br#"{"data":[{"index":1,"embedding":[2]},{"index":0,"embedding":[1]}]}"#, 2).unwrap().0;
        assert_eq!(two, [1.0f32.to_le_bytes(), 2.0f32.to_le_bytes()]);
        for none in [
            &br#"{"data":[]}"#[..],
            br#"{"data":[{"embedding":[]}]}"#,
            br#"{"data":[{"embedding":[0,0]}]}"#,
            br#"{"data":[{"embedding":["1"]}]}"#,
            br#"{"data":[{"embedding":[1]},{"embedding":[1]}]}"#,
            br#"{"error":{"message":"x"}}"#,
            b"<html>",
        ] {
            assert_eq!(read(none, 1), None, "{}", String::from_utf8_lossy(none));
        }
    }
}
