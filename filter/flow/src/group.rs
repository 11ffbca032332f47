//! Calls of the control plane that begin at the same time travel as one: which go together, as what, and whose is which answer.

use crate::config::Config;
use crate::control_plane::{callout, read};
use crate::message::{Answer, Callout, Headers, Reply};
use proxium_wire::{GroupReply, GroupRequest, GroupedAnswer, GroupedCall, path};
use std::borrow::Cow;

/// So many go together, at most.
const MAX_CALLS: usize = 64;
/// Settlements carry answers to store.
const MAX_BYTES: usize = 4 << 20;

/// Takes out the first and what can go with it: of its path and its patience, in the order they came. `T` is whoever waits.
#[must_use]
pub fn next<T>(waiting: &mut Vec<(Callout, T)>) -> Vec<(Callout, T)> {
    let (path, timeout_ms) = waiting.first().map(|(first, _)| (path_of(first).to_owned(), first.timeout_ms)).unwrap_or_default();
    let (mut count, mut bytes) = (0_usize, 0_usize);
    let goes = |(callout, _): &mut (Callout, T)| {
        let alike = path_of(callout) == path && callout.timeout_ms == timeout_ms;
        let fits = count == 0 || (count < MAX_CALLS && bytes.saturating_add(callout.body.len()) <= MAX_BYTES);
        if alike && fits {
            count += 1;
            bytes = bytes.saturating_add(callout.body.len());
        }
        alike && fits
    };
    waiting.extract_if(.., goes).collect()
}

/// One callout of all; one alone goes as it is.
#[must_use]
pub fn together<'a, T>(group: &'a [(Callout, T)], config: &Config) -> Cow<'a, Callout> {
    let (path, timeout_ms) = match group {
        [(alone, _)] => return Cow::Borrowed(alone),
        [(first, _), ..] => (path_of(first).to_owned(), first.timeout_ms),
        [] => Default::default(),
    };
    let call = |(callout, _): &(Callout, T)| {
        let traceparent = callout.headers.get("traceparent").unwrap_or_default().to_owned();
        GroupedCall { body: callout.body.clone(), traceparent }
    };
    Cow::Owned(callout(config, path::GROUP, None, &GroupRequest { path, calls: group.iter().map(call).collect() }, timeout_ms))
}

/// To each of `count` callers the reply that is its own; nothing to one who is to ask alone. What is no answer to a group is one to each of
/// them, and a control plane from before there were groups (404) is asked by each.
#[must_use]
pub fn apart(reply: Reply, count: usize) -> Vec<Option<Reply>> {
    if count > 1 && matches!(&reply, Reply::Answer(answer) if answer.status == 404) {
        return vec![None; count];
    }
    let group = (count > 1).then(|| read::<GroupReply>(&reply)).flatten().filter(|group| group.answers.len() == count);
    let Some(group) = group else { return vec![Some(reply); count] };
    let own = |answer: GroupedAnswer| {
        let status = u16::try_from(answer.status).unwrap_or_default();
        (!answer.alone).then(|| Reply::Answer(Answer { status, headers: Headers::new(), body: answer.body }))
    };
    group.answers.into_iter().map(own).collect()
}

fn path_of(callout: &Callout) -> &str {
    callout.headers.get(":path").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Failure;
    use prost::Message;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn config() -> Config {
        Config::read(br#"{"control_plane_cluster": "control", "internal_secret": "0123456789abcdef0123456789abcdef"}"#).unwrap()
    }

    fn call(path: &str, timeout_ms: u64, body: &[u8]) -> Callout {
        let mut headers = Headers::new();
        headers.add(":path", path);
        headers.add("traceparent", format!("trace of {}", body.len()));
        Callout { cluster: "control".into(), headers, body: body.to_vec(), timeout_ms, groups: true }
    }

    fn answer(status: u16, body: Vec<u8>) -> Reply {
        Reply::Answer(Answer { status, headers: Headers::new(), body })
    }

    #[test]
    fn what_is_of_one_path_and_patience_goes_together_in_its_order() {
        let mut waiting: Vec<_> = [("/a", 1), ("/b", 1), ("/a", 2), ("/a", 1), ("/b", 1)]
            .into_iter()
            .enumerate()
            .map(|(number, (path, timeout_ms))| (call(path, timeout_ms, b"x"), number))
            .collect();
        let mut sent = Vec::new();
        while !waiting.is_empty() {
            sent.push(next(&mut waiting).into_iter().map(|(_, number)| number).collect::<Vec<_>>());
        }
        assert_eq!(sent, [vec![0, 3], vec![1, 4], vec![2]]);
    }

    #[test]
    fn a_group_has_its_bounds_and_what_is_larger_goes_alone() {
        let mut many: Vec<_> = (0..MAX_CALLS + 1).map(|number| (call("/a", 1, b"x"), number)).collect();
        assert_eq!((next(&mut many).len(), next(&mut many).len(), many.len()), (MAX_CALLS, 1, 0));
        let mut large = vec![(call("/a", 1, &vec![0; MAX_BYTES + 1]), 0), (call("/a", 1, b"x"), 1)];
        assert_eq!((next(&mut large).len(), next(&mut large).len()), (1, 1));
    }

    #[test]
    fn one_alone_goes_as_it_is_and_many_with_their_traces() {
        let (one, two) = (call("/a", 7, b"x"), call("/a", 7, b"yy"));
        assert_eq!(*together(&[(one.clone(), ())], &config()), one);
        let both = [(one, ()), (two, ())];
        let sent = together(&both, &config());
        assert_eq!((sent.headers.get(":path"), sent.timeout_ms), (Some(path::GROUP), 7));
        let calls = |body: &[u8]| GroupedCall { body: body.to_vec(), traceparent: format!("trace of {}", body.len()) };
        let wanted = GroupRequest { path: "/a".into(), calls: vec![calls(b"x"), calls(b"yy")] };
        assert_eq!(GroupRequest::decode(sent.body.as_slice()).unwrap(), wanted);
    }

    #[test]
    fn each_gets_its_own_answer_or_is_to_ask_alone() {
        let own = |status, body: &[u8], alone| GroupedAnswer { status, body: body.to_vec(), alone };
        let reply = GroupReply { answers: vec![own(200, b"x", false), own(503, b"why", false), own(0, b"", true)] };
        let wanted = [Some(answer(200, b"x".to_vec())), Some(answer(503, b"why".to_vec())), None];
        assert_eq!(apart(answer(200, reply.encode_to_vec()), 3), wanted);
    }

    #[test]
    fn what_is_no_answer_to_a_group_is_one_to_each() {
        for reply in [answer(503, b"down".to_vec()), answer(200, GroupReply::default().encode_to_vec()), Reply::Failed(Failure::Timeout)] {
            assert_eq!(apart(reply.clone(), 2), [Some(reply.clone()), Some(reply)]);
        }
        assert_eq!(apart(answer(404, Vec::new()), 2), [None, None], "a control plane that knows no groups");
        assert_eq!(apart(answer(404, Vec::new()), 1), [Some(answer(404, Vec::new()))]);
    }
}
