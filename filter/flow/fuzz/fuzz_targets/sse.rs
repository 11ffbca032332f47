//! Any bytes: no panic, and reader, hider, meter and fold do not care where they are split. The first byte says where.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proxium_flow::sse::{Event, Reader};
use proxium_flow::stream::{Fold, Hider, Meter, replay};
use proxium_wire::Dialect;

fn see<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Event>, Vec<u8>) {
    let (mut reader, mut hider) = (Reader::new(), Hider::new());
    let (mut events, mut hidden) = (Vec::new(), Vec::new());
    for piece in pieces {
        events.extend(reader.push(piece));
        hidden.extend(hider.push(piece));
    }
    events.extend(reader.finish());
    hidden.extend(hider.finish());
    (events, hidden)
}

fuzz_target!(|bytes: &[u8]| {
    let Some((size, stream)) = bytes.split_first() else { return };
    let whole = see(std::iter::once(stream));
    assert_eq!(whole, see(stream.chunks(usize::from(*size).max(1))));
    for dialect in [Dialect::Openai, Dialect::Anthropic] {
        let (mut meter, mut fold) = (Meter::new(dialect), Fold::new(dialect, 1 << 16));
        for event in &whole.0 {
            meter.event(event);
            fold.event(event);
        }
        meter.finish();
        let _ = (meter.first(), meter.usage(), meter.complete(), meter.generated_bytes());
        if let Some(unary) = fold.finish() {
            assert!(unary.len() <= 1 << 16);
            let _ = replay(dialect, &unary, true);
        }
        let _ = replay(dialect, stream, true);
    }
});
