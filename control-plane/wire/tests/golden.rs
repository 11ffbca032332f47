//! Pins the bytes of the messages: a tag keeps its number and its meaning for ever.

use prost::Message;
use proxium_wire::{
    AdmitReply, AdmitRequest, Admitted, Alternative, Call, Change, GroupReply, GroupRequest, GroupedAnswer, GroupedCall, Hit, Hits, Hold,
    Limit, Provider, Purge, RateLimit, Refused, ResponseOwner, Settle, Settlement, StoredAnswer, Window, admit_reply, change::What,
    settlement,
};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn an_admission_keeps_its_bytes() {
    let request = AdmitRequest {
        id: "r".into(),
        project: "p".into(),
        key_id: "k".into(),
        source: "s".into(),
        call: Call { endpoint: 1, requested_model: "a".into(), resolved_model: "b".into(), end_user: "u".into(), started_at_ms: 7 },
        normal: Alternative {
            cache_key: vec![0xff],
            hold: Hold { input_tokens: 1, output_tokens: 2, nano_usd: 3 },
            providers: vec!["o".into()],
            resolved_model: String::new(),
            ..Alternative::default()
        },
        soft_cap: None,
        hold_ms: 300,
        side_call: true,
        ..AdmitRequest::default()
    };
    let bytes = request.encode_to_vec();
    assert_eq!(
        hex(&bytes),
        "0a0172120170".to_owned()
            + "1a016b220173"
            + "2a0d0801120161"
            + "1a01622201752807"
            + "320e0a01ff12060801100218031a016f"
            + "40ac024801"
    );
    assert_eq!(AdmitRequest::decode(bytes.as_slice()).ok(), Some(request));
}

#[test]
fn an_alternative_past_the_soft_cap_keeps_its_bytes() {
    let hold = Hold { input_tokens: 1, output_tokens: 2, nano_usd: 3 };
    let alternative =
        Alternative { cache_key: vec![0xff], hold, providers: vec!["o".into()], resolved_model: "m".into(), ..Alternative::default() };
    assert_eq!(hex(&alternative.encode_to_vec()), "0a01ff12060801100218031a016f22016d");
}

#[test]
fn a_charged_hit_keeps_its_bytes() {
    let answer = StoredAnswer { body: vec![0xff], model: "m".into(), cost_nano_usd: 8, request_id: "r".into() };
    let hit = Hit {
        answer,
        charged_nano_usd: 2,
        soft_cap: true,
        rate_limit: Some(RateLimit { requests: None, tokens: None }),
        expires_in_ms: 5,
        ..Hit::default()
    };
    assert_eq!(hex(&hit.encode_to_vec()), "0a0b0a01ff12016d1808220172100218012200e00805");
}

#[test]
fn a_refusal_keeps_its_bytes() {
    let reply = AdmitReply {
        outcome: Some(admit_reply::Outcome::Refused(Refused {
            limit: Limit::TokensPerMinute.into(),
            of_sender: true,
            retry_after_ms: Some(5),
            rate_limit: RateLimit { requests: None, tokens: Some(Window { limit: 9, remaining: 0, reset_ms: 8 }) },
        })),
    };
    assert_eq!(hex(&reply.encode_to_vec()), "1a0e0803100118052206120408091808");
}

#[test]
fn hits_and_purges_keep_their_bytes() {
    let call = Call { endpoint: 1, requested_model: "a".into(), ..Call::default() };
    let hits = Settlement {
        id: "b".into(),
        project: "p".into(),
        key_id: "k".into(),
        source: String::new(),
        end: Some(settlement::End::Hits(Hits { call, model: "m".into(), count: 9 })),
        side_call: false,
    };
    assert_eq!(hex(&hits.encode_to_vec()), "0a01621201701a016be2080c0a05080112016112016d1809");
    let purge = What::Purge(Purge { project: "p".into(), model: "m".into(), request_id: "r".into() });
    assert_eq!(hex(&Change { what: Some(purge) }.encode_to_vec()), "e208090a017012016d1a0172");
    assert_eq!(hex(&Change { what: Some(What::Answer(vec![0xff])) }.encode_to_vec()), "ea0801ff");
}

#[test]
fn a_release_keeps_its_bytes() {
    let mut release = Settlement {
        id: "r".into(),
        project: "p".into(),
        key_id: "k".into(),
        source: String::new(),
        end: Some(settlement::End::Release(proxium_wire::Release {})),
        side_call: false,
    };
    assert_eq!(hex(&release.encode_to_vec()), "0a01721201701a016b3200");
    release.side_call = true;
    assert_eq!(hex(&release.encode_to_vec()), "0a01721201701a016b3200c00c01");
}

#[test]
fn a_response_and_its_owner_keep_their_bytes() {
    let owner = ResponseOwner { provider: "o".into(), own_credential: true };
    let admitted = Admitted { previous_response: Some(owner), ..Admitted::default() };
    assert_eq!(hex(&admitted.encode_to_vec()), "1a00c207050a016f1001");
    let settle = Settle { response_id: "r".into(), own_credential: true, ..Settle::default() };
    assert!(hex(&settle.encode_to_vec()).ends_with("c2070172c80701"));
    let provider = Provider { chat_only: true, ..Provider::default() };
    assert_eq!(hex(&provider.encode_to_vec()), "c00701");
}

#[test]
fn a_group_keeps_its_bytes() {
    let call = |body: u8, traceparent: &str| GroupedCall { body: vec![body], traceparent: traceparent.into() };
    let request = GroupRequest { path: "/v1/admit".into(), calls: vec![call(0xff, "t"), call(0xfe, "")] };
    assert_eq!(hex(&request.encode_to_vec()), "0a092f76312f61646d6974".to_owned() + "12060a01ff120174" + "12030a01fe");
    let reply = GroupReply { answers: vec![GroupedAnswer { status: 200, body: vec![0xff], alone: true }] };
    assert_eq!(hex(&reply.encode_to_vec()), "0a0808c8011201ff1801");
}
