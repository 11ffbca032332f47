//! Random schedules of everything that can happen to calls, on a real Redis: whatever the order, the books agree.

use crate::world::{KEY, NOON, World, ms, settled};
use fred::prelude::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use proxium::store::{Money, name};
use proxium_wire::{AdmitRequest, Limit, Release, SettleRequest, admit_reply::Outcome, settlement::End};
use std::collections::{BTreeMap, HashMap};

const PROJECTS: usize = 2;
const CAP: i64 = 20_000;
const TOKENS: u64 = 400;
const AT_ONCE: u64 = 6;

#[derive(Clone, Debug)]
enum Step {
    /// Asks for a call of this id; the same id again is a duplicate, or comes too late.
    Reserve {
        project: usize,
        id: u8,
        tokens: u64,
        money: i64,
        sender: bool,
        side: bool,
        hold_ms: u64,
    },
    /// Settles it, known or not, held or not; as a side call where it is unknown.
    Settle {
        project: usize,
        id: u8,
        tokens: u64,
        cost: i64,
        side: bool,
    },
    Release {
        project: usize,
        id: u8,
    },
    /// Delivers the last settlement or release once more.
    Again,
    /// The clock moves on.
    Clock {
        project: usize,
        ms: i64,
    },
    /// The control plane is gone; another one goes on.
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    let (project, id) = (0..PROJECTS, 0_u8..14);
    prop_oneof![
        6 => (project.clone(), id.clone(), 0_u64..150, 0_i64..4_000, any::<bool>(), prop::bool::weighted(0.15), 0_u64..90_000).prop_map(
            |(project, id, tokens, money, sender, side, hold_ms)| Step::Reserve { project, id, tokens, money, sender, side, hold_ms }
        ),
        4 => (project.clone(), id.clone(), 0_u64..300, 0_i64..5_000, prop::bool::weighted(0.15))
            .prop_map(|(project, id, tokens, cost, side)| Step::Settle { project, id, tokens, cost, side }),
        2 => (project.clone(), id).prop_map(|(project, id)| Step::Release { project, id }),
        2 => Just(Step::Again),
        2 => (project, prop_oneof![0_i64..2_000, 20_000_i64..70_000, Just(3_600_000), Just(16 * 86_400_000)])
            .prop_map(|(project, ms)| Step::Clock { project, ms }),
        1 => Just(Step::Crash),
    ]
}

/// One project and what must be true of it.
struct Books {
    world: World,
    clock: i64,
    /// What every call that ended came to.
    costs: BTreeMap<u8, i64>,
}

impl Books {
    async fn new() -> Self {
        let world = World::new().await;
        world.cap(CAP).await;
        world.ceiling(Limit::TokensPerMinute, TOKENS).await;
        world.ceiling(Limit::MaxParallelCalls, AT_ONCE).await;
        world.sender_ceiling("app", Limit::CallsPerHour, 8).await;
        Self { world, clock: ms(NOON), costs: BTreeMap::new() }
    }

    async fn reserve(&mut self, request: &AdmitRequest) {
        // One that is refused for sure lets what is due expire and the month roll, so that the next compares like with like.
        self.world.admit(&self.world.call("gone")).await;
        let before = self.world.everything().await;
        match self.world.admit(request).await {
            Outcome::Admitted(_) => {
                let ([_, spend, held], [.., tokens]) = tokio::join!(self.world.state(), self.world.key_window());
                // A side call counts no tokens, so that the stored sum may still be that of a window which is over.
                let tokens = if request.side_call { 0 } else { tokens };
                if spend + held > CAP || tokens > TOKENS as i64 {
                    // An actual above its hold may have passed a limit; but then this is a duplicate, which takes nothing.
                    let now = self.world.everything().await;
                    assert_eq!(now, before, "{spend} + {held} above the cap, or {tokens} above the ceiling");
                }
            }
            Outcome::Refused(_) => assert_eq!(self.world.everything().await, before, "a refusal changes nothing"),
            other => panic!("{other:?}"),
        }
        let parallel: u64 = self.world.client.scard(name::held_by_key(&self.world.project, KEY)).await.unwrap();
        assert!(parallel <= AT_ONCE + 1, "the empty id says that the set is made");
    }

    /// After all calls ended: nothing is held, and ledger, counters, state and windows agree with what the calls came to.
    async fn balance(&self) {
        let World { client, project, .. } = &self.world;
        let [month, spend, held] = self.world.state().await;
        assert_eq!(held, 0);
        for set in [name::held_by_key(project, KEY), name::held_by_sender(project, "app"), name::due(project)] {
            let left: Vec<String> = if set == name::due(project) {
                client.zrange(&set, 0, -1, None, false, None, false).await.unwrap()
            } else {
                client.smembers(&set).await.unwrap()
            };
            assert!(left.iter().all(String::is_empty), "{set} holds {left:?}");
        }
        let ledger = self.world.ledger().await;
        let sum = |records: &[&HashMap<String, String>], field: &str| -> i64 {
            records.iter().map(|record| record[field].parse::<i64>().unwrap()).sum()
        };
        let all: Vec<_> = ledger.iter().collect();
        assert_eq!(sum(&all, "cost_nano_usd"), self.costs.values().sum::<i64>());
        for (id, cost) in &self.costs {
            let of: Vec<_> = ledger.iter().filter(|record| record["id"] == id.to_string()).collect();
            assert_eq!(sum(&of, "cost_nano_usd"), *cost, "call {id}: {of:?}");
        }
        let mut months: BTreeMap<&str, Vec<&HashMap<String, String>>> = BTreeMap::new();
        ledger.iter().for_each(|record| months.entry(&record["month"]).or_default().push(record));
        for (month, records) in &months {
            let counter: Option<i64> = client.hget(name::spend_month(project, month), "spend").await.unwrap();
            assert_eq!(counter.unwrap_or(0), sum(records, "cost_nano_usd"));
        }
        let mut days: BTreeMap<String, Vec<&HashMap<String, String>>> = BTreeMap::new();
        for record in &ledger {
            let at = jiff::Timestamp::from_millisecond(record["at_ms"].parse().unwrap()).unwrap();
            days.entry(at.strftime("%Y%m%d").to_string()).or_default().push(record);
        }
        for (day, records) in &days {
            let counters: HashMap<String, i64> = client.hgetall(name::spend_day(project, day)).await.unwrap();
            let counted =
                |metric: &str| -> i64 { counters.iter().filter(|(field, _)| field.starts_with(metric)).map(|(_, more)| more).sum() };
            assert_eq!(counted("cost|"), sum(records, "cost_nano_usd"));
            assert_eq!(counted("answers|"), sum(records, "calls"));
            assert_eq!((counted("input|"), counted("output|")), (sum(records, "input_tokens"), sum(records, "output_tokens")));
        }
        assert_eq!(spend, months.get(month.to_string().as_str()).map_or(0, |records| sum(records, "cost_nano_usd")));
        let window: HashMap<String, i64> = client.hgetall(name::key_window(project, KEY)).await.unwrap();
        for (tag, width, field) in [("c", 60_000, "calls"), ("r", 1_000, "calls"), ("t", 1_000, "tokens")] {
            let Some(head) = window.get(&format!("{tag}_head")) else { continue };
            let within = |record: &&&HashMap<String, String>| record["at_ms"].parse::<i64>().unwrap() / width > head - 61;
            let of: Vec<_> = all.iter().filter(within).copied().collect();
            assert_eq!(window[&format!("{tag}_sum")], sum(&of, field), "{tag}");
        }
        self.world.key_window().await;
    }
}

async fn run(schedule: Vec<Step>) {
    let mut books = vec![Books::new().await, Books::new().await];
    for book in &books {
        book.world.release("gone").await;
    }
    let mut last: Option<SettleRequest> = None;
    for step in schedule {
        match step {
            Step::Reserve { project, id, tokens, money, sender, side, hold_ms } => {
                let book = &mut books[project];
                let mut request = AdmitRequest { hold_ms, side_call: side, ..book.world.call(&id.to_string()) };
                request.source = if sender { "app" } else { "" }.into();
                request.normal.hold.input_tokens = tokens / 2;
                request.normal.hold.output_tokens = tokens - tokens / 2;
                request.normal.hold.nano_usd = money;
                book.reserve(&request).await;
            }
            Step::Settle { project, id, tokens, cost, side } => {
                let book = &mut books[project];
                book.costs.entry(id).or_insert(cost);
                let mut request = book.world.end(&id.to_string(), "", End::Settle(Box::new(settled((tokens, 1), cost, None))));
                request.settlements[0].side_call = side;
                book.world.money.settle(&request).await.unwrap();
                last = Some(request);
            }
            Step::Release { project, id } => {
                let book = &mut books[project];
                book.costs.entry(id).or_insert(0);
                let request = book.world.end(&id.to_string(), "", End::Release(Release {}));
                book.world.money.settle(&request).await.unwrap();
                last = Some(request);
            }
            Step::Again => {
                if let Some(request) = &last {
                    books[0].world.money.settle(request).await.unwrap();
                }
            }
            Step::Clock { project, ms } => {
                let book = &mut books[project];
                book.clock += ms;
                book.world.clock(book.clock).await;
            }
            Step::Crash => {
                for book in &mut books {
                    book.world.money = Money::new(book.world.client.clone(), book.world.client.clone());
                }
            }
        }
    }
    for book in &mut books {
        for id in 0_u8..14 {
            let cost = *book.costs.entry(id).or_insert(0);
            // Ended ones stay as they are; the others end now.
            let request = book.world.end(
                &id.to_string(),
                "",
                if cost == 0 { End::Release(Release {}) } else { End::Settle(Box::new(settled((1, 1), cost, None))) },
            );
            book.world.money.settle(&request).await.unwrap();
        }
        book.balance().await;
    }
}

#[test]
fn whatever_the_order_the_books_agree_and_no_limit_is_passed() {
    let home = crate::home();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = Config { cases: crate::SCHEDULES, max_shrink_iters: 200, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&prop::collection::vec(step(), 1..60), |schedule| {
            runtime.block_on(run(schedule));
            Ok(())
        })
        .unwrap();
    drop(home);
}
