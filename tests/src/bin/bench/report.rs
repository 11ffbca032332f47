//! Ratios to the plain Envoy of the same round, the table, the comparison with the baseline.

use super::admit::Admit;
use super::cells::{CELLS, Cell, Memory, Sample, Target};
use super::cold::Cold;
use super::counts::Counts;
use super::growth::Chains;
use super::reserve::Reserve;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// A ratio may be worse by so much before the comparison fails.
const TOLERANCE: f64 = 0.15;

/// All that was measured.
#[derive(Serialize, Deserialize)]
pub struct Results {
    pub samples: Vec<Sample>,
    pub memory: Memory,
    pub counts: Counts,
    pub admit: Admit,
    #[serde(default)]
    pub reserve: Reserve,
    #[serde(default)]
    pub chains: Chains,
    #[serde(default)]
    pub cold: Cold,
    pub wasm_bytes: u64,
}

/// A ratio, by what it is of.
struct Ratio {
    name: String,
    value: f64,
    higher_is_better: bool,
    /// Issue 7's.
    goal: Option<f64>,
}

pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// The row that a row is measured against.
fn base(cell: &Cell) -> Option<&'static Cell> {
    CELLS
        .iter()
        .find(|base| base.target == Target::Plain && (base.clients, base.stream, base.bytes) == (cell.clients, cell.stream, cell.bytes))
}

fn rate(sample: &Sample) -> f64 {
    sample.load.requests as f64 / sample.load.seconds
}

impl Results {
    /// Writes them as JSON.
    pub fn write(&self, file: &Path) {
        std::fs::create_dir_all(file.parent().expect("a directory")).expect("a directory");
        std::fs::write(file, serde_json::to_string_pretty(self).expect("JSON") + "\n").expect("the results are written");
    }

    fn of<'a>(&'a self, cell: &'a Cell) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(|sample| sample.cell == cell.name)
    }

    fn median(&self, cell: &Cell, what: impl Fn(&Sample) -> f64) -> Option<f64> {
        median(self.of(cell).map(what).collect())
    }

    /// Both sides from the same round, then the median.
    fn paired(&self, cell: &Cell, what: impl Fn(&Sample) -> f64, join: impl Fn(f64, f64) -> f64) -> Option<f64> {
        let base = base(cell)?;
        let of_round = |round| self.of(base).find(|sample| sample.round == round);
        median(self.of(cell).filter_map(|sample| Some(join(what(sample), what(of_round(sample.round)?)))).collect())
    }

    fn ratios(&self) -> BTreeMap<String, Ratio> {
        let goals: BTreeMap<&str, f64> = [
            ("hit c64 rate", 0.60),
            ("miss c64 rate", 0.25),
            ("miss c1 p50", 4.5),
            ("miss c1 p99", 5.0),
            ("refusal c64 rate", 0.45),
            ("stream c16 rate", 0.70),
            ("admit rate to bare script", 0.60),
            ("reserve rate with a million keys", 0.85),
            ("reserve rate to empty script", 0.60),
            ("miss rate with 1,000 chains", 0.85),
            ("miss cpu, 64 KiB to 1 KiB", 64.0),
        ]
        .into();
        let mut all = BTreeMap::new();
        let mut add = |name: String, value: Option<f64>, higher_is_better| {
            if let Some(value) = value {
                all.insert(name.clone(), Ratio { goal: goals.get(name.as_str()).copied(), name, value, higher_is_better });
            }
        };
        for cell in CELLS.iter().filter(|cell| cell.target != Target::Plain) {
            let ratio = |what: fn(&Sample) -> f64| self.paired(cell, what, |ours, plain| ours / plain);
            // One client's rate says the same as its latency, and the latency of many is their queue.
            if cell.clients == 1 {
                add(format!("{} p50", cell.name), ratio(|sample| sample.load.p50_us.into()), false);
                add(format!("{} p99", cell.name), ratio(|sample| sample.load.p99_us.into()), false);
            } else {
                add(format!("{} rate", cell.name), ratio(rate), true);
                add(format!("{} cpu", cell.name), ratio(|sample| sample.cpu_us.iter().sum()), false);
            }
        }
        let admit = self.admit.admit.iter().zip(&self.admit.bare).map(|(admit, bare)| admit / bare).collect();
        add("admit rate to bare script".into(), median(admit), true);
        add("reserve rate with a million keys".into(), median(self.reserve.many_to_few()), true);
        add("reserve rate to empty script".into(), median(self.reserve.to_empty()), true);
        add("miss rate with 1,000 chains".into(), median(self.chains.many_to_one()), true);
        let cpu = |name: &str| self.median(CELLS.iter().find(|cell| cell.name == name)?, |sample| sample.cpu_us.iter().sum());
        add("miss cpu, 64 KiB to 1 KiB".into(), cpu("miss 64 KiB c1").zip(cpu("miss c1")).map(|(long, short)| long / short), false);
        all
    }

    /// What is no ratio, and so this machine's: each with the most it may be.
    fn absolute(&self) -> [(&'static str, Option<f64>, f64); 6] {
        let first_byte = CELLS
            .iter()
            .find(|cell| cell.name == "stream c1")
            .and_then(|cell| self.paired(cell, |sample| sample.load.first_byte_p50_us.into(), |ours, plain| ours - plain));
        let Memory { idle, c64, stream_kib, plain_stream_kib } = self.memory;
        let stream = (stream_kib > 0.0).then_some(stream_kib - plain_stream_kib);
        [
            ("stream first byte, more ms", first_byte.map(|us| us / 1e3), 0.7),
            ("memory idle MiB", Some(idle), 160.0),
            ("memory under c64 MiB", Some(c64), 220.0),
            ("open stream, more KiB", stream, 32.0),
            ("cold VM start ms", median(self.cold.new_vm_ms.clone()), 50.0),
            ("wasm KiB", Some(self.wasm_bytes as f64 / 1024.0), 700.0),
        ]
    }

    /// What is worse than it was.
    ///
    /// # Errors
    /// There is no baseline to read.
    pub fn worse_than(&self, baseline: &Path) -> Result<Vec<String>, String> {
        let text = std::fs::read_to_string(baseline).map_err(|error| format!("{}: {error}", baseline.display()))?;
        let before: Self = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", baseline.display()))?;
        let before = before.ratios();
        let worse = |ratio: &Ratio| {
            let known = before.get(&ratio.name)?.value;
            let is_worse =
                if ratio.higher_is_better { ratio.value < known * (1.0 - TOLERANCE) } else { ratio.value > known * (1.0 + TOLERANCE) };
            // A tail of one client is mostly the machine's.
            (is_worse && !ratio.name.ends_with("p99")).then(|| format!("{}: {:.2}, was {known:.2}", ratio.name, ratio.value))
        };
        Ok(self.ratios().values().filter_map(worse).collect())
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{:<16} {:>9} {:>7} {:>9} {:>9} {:>7} {:>11} {:>24} {:>6} {:>6}",
            "", "req/s", "x plain", "p50 ms", "p99 ms", "x plain", "1st byte ms", "cpu us/req: Envoy+cp+Redis", "errors", "others"
        )?;
        for cell in &CELLS {
            let Some(requests) = self.median(cell, rate) else { continue };
            let ms = |what: fn(&Sample) -> f64| self.median(cell, what).unwrap_or_default() / 1e3;
            let times = |what: fn(&Sample) -> f64| self.paired(cell, what, |ours, plain| ours / plain).unwrap_or_default();
            let cpu: Vec<String> = (0..3)
                .filter_map(|process| {
                    self.median(cell, |sample| sample.cpu_us.get(process).copied().unwrap_or(-1.0)).filter(|us| *us >= 0.0)
                })
                .map(|us| format!("{us:.0}"))
                .collect();
            let errors: u64 = self.of(cell).map(|sample| sample.load.errors).sum();
            writeln!(
                f,
                "{:<16} {requests:>9.0} {:>7.3} {:>9.3} {:>9.3} {:>7.2} {:>11.3} {:>26} {errors:>6} {:>6.2}",
                cell.name,
                times(rate),
                ms(|sample| sample.load.p50_us.into()),
                ms(|sample| sample.load.p99_us.into()),
                times(|sample| sample.load.p50_us.into()),
                ms(|sample| sample.load.first_byte_p50_us.into()),
                cpu.join(" + "),
                self.median(cell, |sample| sample.others).unwrap_or_default(),
            )?;
            if let Some(sample) = self.of(cell).find(|sample| sample.load.errors > 0) {
                writeln!(f, "    first error: {}", sample.load.first_error)?;
            }
        }
        writeln!(f)?;
        for ratio in self.ratios().values().filter(|ratio| ratio.goal.is_some()) {
            let goal = ratio.goal.unwrap_or_default();
            let met = if ratio.higher_is_better { ratio.value >= goal } else { ratio.value <= goal };
            let sign = if ratio.higher_is_better { ">=" } else { "<=" };
            writeln!(f, "{:<32} {:>7.3}  goal {sign} {goal:<5} {}", ratio.name, ratio.value, if met { "met" } else { "MISSED" })?;
        }
        for (name, value, goal) in self.absolute() {
            let Some(value) = value else { continue };
            writeln!(f, "{name:<32} {value:>7.2}  goal <= {goal:<5} {}", if value <= goal { "met" } else { "MISSED" })?;
        }
        if let Some(ms) = median(self.cold.new_code_ms.clone()) {
            writeln!(f, "{:<32} {ms:>7.2}  once in a process", "of code that is new to it, ms")?;
        }
        writeln!(
            f,
            "Admit/s                      {:.0}, bare script {:.0}",
            median(self.admit.admit.clone()).unwrap_or_default(),
            median(self.admit.bare.clone()).unwrap_or_default()
        )?;
        writeln!(f, "{}", self.reserve)?;
        let Counts { hit, miss, kept, refusal } = self.counts;
        for (name, count) in [("hit", hit), ("miss", miss), ("kept", kept), ("refusal", refusal)] {
            writeln!(f, "Redis commands of a {name:<8} {} sent, {} in scripts", count.sent, count.in_scripts)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASELINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/bench/baseline.json");

    /// What is worse if each cell that `slower` names does half as much in the same time.
    fn worse(slower: impl Fn(&str) -> bool) -> Vec<String> {
        let mut results: Results = serde_json::from_str(&std::fs::read_to_string(BASELINE).unwrap()).unwrap();
        for sample in results.samples.iter_mut().filter(|sample| slower(&sample.cell)) {
            sample.load.requests /= 2;
            sample.load.p50_us *= 2;
            sample.load.p99_us *= 2;
            sample.cpu_us.iter_mut().for_each(|us| *us *= 2.0);
        }
        results.worse_than(Path::new(BASELINE)).unwrap()
    }

    #[test]
    fn only_a_ratio_that_got_worse_fails_and_never_a_slower_machine() {
        assert_eq!(worse(|_| false), [""; 0]);
        assert_eq!(worse(|_| true), [""; 0]);
        let worse = worse(|cell| cell == "miss c64");
        assert!(worse.iter().any(|line| line.starts_with("miss c64 rate")), "{worse:?}");
        assert!(worse.iter().all(|line| line.starts_with("miss c64")), "{worse:?}");
    }
}
