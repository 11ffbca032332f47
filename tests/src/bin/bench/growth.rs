//! How costs grow with the catalog: the same calls among one chain and among a thousand.

use super::cells::{self, CELLS};
use super::servers::Servers;
use proxium_e2e::{BOUND, Call, chat, eventually};
use serde::{Deserialize, Serialize};

const MANY: usize = 1_000;

/// Rates a second of metered misses at c64, one of each round.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Chains {
    pub one: Vec<f64>,
    pub many: Vec<f64>,
}

impl Chains {
    /// Ratios of rates of the same round.
    pub fn many_to_one(&self) -> Vec<f64> {
        self.many.iter().zip(&self.one).map(|(many, one)| many / one).collect()
    }
}

/// Measures both in each round.
pub async fn measure(servers: &Servers, seconds: f64, rounds: usize) -> Chains {
    let cell = CELLS.iter().find(|cell| cell.name == "miss c64").expect("a cell");
    let mut chains = Chains::default();
    for _ in 0..rounds {
        for count in [MANY, 1] {
            set(servers, count).await;
            let rates = if count == 1 { &mut chains.one } else { &mut chains.many };
            rates.push(cells::rate(cell, servers, seconds).await);
        }
    }
    chains
}

/// Puts so many chains into the catalog, and waits until the filter knows of it.
async fn set(servers: &Servers, count: usize) {
    const CHAINS: &str = "chains:\n";
    let list: String = (0..count).map(|number| format!("  chain-{number}: [gpt-4o-mini]\n")).collect();
    servers.stack.edit_catalog_only(|text| format!("{}{CHAINS}{list}", text.split(CHAINS).next().unwrap_or_default()));
    let last = Call::chat(&servers.metered, &chat(&format!("chain-{}", MANY - 1), "Is it there?"));
    eventually("the filter knows the catalog", BOUND, async || (servers.stack.call(&last).await.status == 200) == (count == MANY)).await;
}
