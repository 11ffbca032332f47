//! Who is killed, when, and for how long.

use proxium::mock_provider::{ANY, Behaviour};
use proxium_e2e::Stack;
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use std::fmt;
use std::time::{Duration, Instant};

/// What can be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Envoy(usize),
    ControlPlane(usize),
    Redis,
}

pub const ENVOYS: usize = 2;
pub const CONTROL_PLANES: usize = 3;
const ALL: [Part; ENVOYS + CONTROL_PLANES + 1] =
    [Part::Envoy(0), Part::Envoy(1), Part::ControlPlane(0), Part::ControlPlane(1), Part::ControlPlane(2), Part::Redis];

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Envoy(number) => write!(f, "envoy-{number}"),
            Self::ControlPlane(number) => write!(f, "control-plane-{number}"),
            Self::Redis => write!(f, "redis"),
        }
    }
}

/// `kill -9`s in their order.
pub type Kills = Vec<(Part, Instant)>;

fn kill(stack: &mut Stack, part: Part) {
    match part {
        Part::Envoy(number) => stack.envoys[number].kill(),
        Part::ControlPlane(number) => stack.control_planes[number].kill(),
        Part::Redis => stack.redis.kill(),
    }
}

/// Starts it; of Redis alone it is waited for.
async fn start(stack: &mut Stack, part: Part) {
    match part {
        Part::Envoy(number) => stack.envoys[number].restart(),
        Part::ControlPlane(number) => stack.control_planes[number].restart_unready(),
        Part::Redis => stack.redis.resume_service().await,
    }
}

async fn pause(dice: &mut StdRng, ms: std::ops::Range<u64>) {
    tokio::time::sleep(Duration::from_millis(dice.random_range(ms))).await;
}

/// Kills and restarts until then: first each part once, then any; sometimes two or three are down together. A provider fails now and then,
/// too. At the end all run.
pub async fn rage(stack: &mut Stack, dice: &mut StdRng, until: Instant) -> Kills {
    let mut deck = ALL;
    deck.shuffle(dice);
    let (mut first, mut kills) = (deck.into_iter(), Kills::new());
    while Instant::now() < until {
        stack.mocks.first.next(ANY, [Behaviour::status(500), Behaviour::reset()]);
        let mut down = Vec::new();
        for _ in 0..*[1, 1, 1, 2, 3].choose(dice).unwrap() {
            let part = first.next().unwrap_or_else(|| *ALL.choose(dice).unwrap());
            if !down.contains(&part) {
                kill(stack, part);
                kills.push((part, Instant::now()));
                down.push(part);
                pause(dice, 0..300).await;
            }
        }
        pause(dice, 50..700).await;
        down.shuffle(dice);
        for part in down {
            start(stack, part).await;
        }
        pause(dice, 500..2_400).await;
    }
    kills
}
