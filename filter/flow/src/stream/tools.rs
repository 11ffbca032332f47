//! Which tool call a piece of an OpenAI stream belongs to.

use std::collections::BTreeMap;

/// Numbers the tool calls of one choice in the order they begin.
///
/// A piece belongs to the call of its `index`. Providers differ: some send every call under index 0 with ids of their own, some send no
/// index at all. So an id that differs from the call's begins another one, and a piece without index and id goes to the last call.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    by_index: BTreeMap<u64, usize>,
    ids: Vec<String>,
}

impl Slots {
    /// The slot of a piece; slots are numbered without gaps.
    pub(crate) fn slot(&mut self, index: Option<u64>, id: &str) -> usize {
        let known = match index {
            Some(index) => self.by_index.get(&index).copied(),
            None if id.is_empty() => self.ids.len().checked_sub(1),
            None => self.ids.iter().position(|known| known == id),
        };
        if let Some(slot) = known
            && let Some(known) = self.ids.get_mut(slot)
            && (id.is_empty() || known.is_empty() || known == id)
        {
            if known.is_empty() {
                id.clone_into(known);
            }
            return slot;
        }
        let slot = self.ids.len();
        self.ids.push(id.to_owned());
        if let Some(index) = index {
            self.by_index.insert(index, slot);
        }
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn pieces_find_their_call() {
        let of = |pieces: &[(Option<u64>, &str)]| {
            let mut slots = Slots::default();
            pieces.iter().map(|(index, id)| slots.slot(*index, id)).collect::<Vec<_>>()
        };
        assert_eq!(of(&[(Some(0), "a"), (Some(1), "b"), (Some(0), ""), (Some(1), ""), (Some(0), "a")]), [0, 1, 0, 1, 0]);
        assert_eq!(of(&[(Some(0), "a"), (Some(0), "b"), (Some(0), "")]), [0, 1, 1]);
        assert_eq!(of(&[(None, "a"), (None, ""), (None, "b"), (None, ""), (None, "a")]), [0, 0, 1, 1, 0]);
        assert_eq!(of(&[(Some(3), ""), (Some(3), "late"), (None, "")]), [0, 0, 0]);
    }
}
