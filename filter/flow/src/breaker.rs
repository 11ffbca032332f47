//! The circuit breaker of a credential, as a value that is read, stepped and written back.
//!
//! A breaker protects what is behind it and the deadline of those who call: a dead credential is skipped without waiting for it. Counted
//! is only what speaks against the credential; a 429 speaks for a rest of that model ([`Outcome::Rest`]), a 400 against the caller.
//! Failures while it is open come from calls that began before: they say nothing new and do not move the clock. Half-open lets one call
//! through, and only that call decides, so that a provider coming back is not trampled.

use proxium_wire::Breaker as Settings;

/// Which breaker, and which rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Names the credential without showing it: `<provider>` for the platform's, `<project>/<provider>` for a project's own.
    pub credential: String,
    /// Catalog name of the model.
    pub model: String,
}

impl Lane {
    /// The provider's name, whosever the credential is.
    #[must_use]
    pub fn provider(&self) -> &str {
        self.credential.rsplit('/').next().unwrap_or_default()
    }
}

/// May a call be made?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permit {
    /// Yes.
    Call,
    /// Yes, and it is the one that decides.
    Probe,
    /// No, the breaker is open; the wait until a probe may go.
    Open {
        /// Milliseconds from now.
        wait_ms: u64,
    },
    /// No, the provider asked for a rest; what is left of it.
    Resting {
        /// Milliseconds from now.
        wait_ms: u64,
    },
}

/// What an attempt says about its credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It works.
    Success,
    /// It does not.
    Failure,
    /// Nothing: the caller left, or the answer was the caller's own fault.
    Nothing,
    /// The provider asks to rest this model for so many milliseconds.
    Rest(u64),
}

/// How long a model of a credential rests: from 1 s to a minute, whatever the provider says.
#[must_use]
pub fn rest_ms(retry_after_ms: Option<u64>) -> u64 {
    retry_after_ms.unwrap_or(1_000).clamp(1, 60_000)
}

const CELLS: usize = 6;
const VERSION: u8 = 1;

/// One breaker. [`State::to_bytes`] and [`State::from_bytes`] carry it through shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    in_a_row: u32,
    /// Calls and failures of the window, in cells of a sixth of it.
    cells: [(u32, u32); CELLS],
    /// Which cell time the newest cell stands for.
    newest: u64,
    /// Open until this instant, then half-open; 0: closed.
    open_until_ms: u64,
    /// How long it was opened last; doubles until a success.
    opened_for_ms: u64,
    /// The probe's claim ends at this instant; 0: nobody probes.
    probe_until_ms: u64,
}

impl State {
    /// Asks for a call at `now_ms`; a probe's claim is taken until `now_ms + claim_ms`.
    pub fn permit(&mut self, now_ms: u64, claim_ms: u64) -> Permit {
        if self.open_until_ms == 0 {
            return Permit::Call;
        }
        let wait_ms = self.open_until_ms.max(self.probe_until_ms).saturating_sub(now_ms);
        if wait_ms > 0 {
            return Permit::Open { wait_ms };
        }
        self.probe_until_ms = now_ms.saturating_add(claim_ms.max(1));
        Permit::Probe
    }

    /// Counts what came of a call.
    pub fn report(&mut self, outcome: Outcome, was_probe: bool, now_ms: u64, settings: &Settings) {
        if self.open_until_ms > 0 && !was_probe {
            return;
        }
        match outcome {
            Outcome::Success if was_probe => *self = Self::default(),
            Outcome::Failure if was_probe => self.open(now_ms, settings),
            Outcome::Nothing | Outcome::Rest(_) => self.probe_until_ms = 0,
            Outcome::Success => {
                self.count(now_ms, settings, false);
                self.in_a_row = 0;
                self.opened_for_ms = 0;
            }
            Outcome::Failure => {
                self.count(now_ms, settings, true);
                self.in_a_row = self.in_a_row.saturating_add(1);
                let (calls, failures) =
                    self.cells.iter().fold((0u64, 0u64), |sum, cell| (sum.0 + u64::from(cell.0), sum.1 + u64::from(cell.1)));
                let share_reached =
                    calls >= u64::from(settings.min_requests) && failures * 1_000_000 >= calls * u64::from(settings.failure_ratio_ppm);
                if self.in_a_row >= settings.consecutive_failures || share_reached {
                    self.open(now_ms, settings);
                }
            }
        }
    }

    /// Open until this instant, then half-open; `None`: closed.
    #[must_use]
    pub fn open_until_ms(&self) -> Option<u64> {
        Some(self.open_until_ms).filter(|until_ms| *until_ms > 0)
    }

    /// What a report made of `before`, in the operator's word; `None`: neither opened nor closed.
    #[must_use]
    pub const fn change(&self, before: &Self) -> Option<&'static str> {
        match (before.open_until_ms, self.open_until_ms) {
            (before, now) if before == now => None,
            (_, 0) => Some("closed"),
            _ => Some("open"),
        }
    }

    fn open(&mut self, now_ms: u64, settings: &Settings) {
        let doubled = if self.opened_for_ms == 0 { settings.cooldown_ms } else { self.opened_for_ms.saturating_mul(2) };
        let opened_for_ms = doubled.clamp(1, settings.max_cooldown_ms.max(1));
        *self = Self { open_until_ms: now_ms.saturating_add(opened_for_ms), opened_for_ms, ..Self::default() };
    }

    fn count(&mut self, now_ms: u64, settings: &Settings, failed: bool) {
        let cell_ms = (settings.window_ms / CELLS as u64).max(1);
        let current = now_ms / cell_ms;
        let passed = current.saturating_sub(self.newest).min(CELLS as u64);
        for step in 1..=passed {
            if let Some(cell) = self.cell(current - passed + step) {
                *cell = (0, 0);
            }
        }
        self.newest = self.newest.max(current);
        if let Some(cell) = self.cell(self.newest) {
            cell.0 = cell.0.saturating_add(1);
            cell.1 = cell.1.saturating_add(u32::from(failed));
        }
    }

    fn cell(&mut self, time: u64) -> Option<&mut (u32, u32)> {
        self.cells.get_mut(usize::try_from(time % CELLS as u64).unwrap_or_default())
    }

    /// For shared memory.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&self.in_a_row.to_le_bytes());
        for (calls, failures) in self.cells {
            bytes.extend_from_slice(&calls.to_le_bytes());
            bytes.extend_from_slice(&failures.to_le_bytes());
        }
        for number in [self.newest, self.open_until_ms, self.opened_for_ms, self.probe_until_ms] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// From shared memory; anything unreadable is a closed breaker.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut rest = bytes.strip_prefix(&[VERSION]).unwrap_or_default();
        let mut state = Self { in_a_row: take(&mut rest).map_or(0, u32::from_le_bytes), ..Self::default() };
        for cell in &mut state.cells {
            *cell = (take(&mut rest).map_or(0, u32::from_le_bytes), take(&mut rest).map_or(0, u32::from_le_bytes));
        }
        for number in [&mut state.newest, &mut state.open_until_ms, &mut state.opened_for_ms, &mut state.probe_until_ms] {
            *number = take(&mut rest).map_or(0, u64::from_le_bytes);
        }
        state
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(*head)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const SETTINGS: Settings = Settings {
        consecutive_failures: 5,
        failure_ratio_ppm: 500_000,
        min_requests: 20,
        window_ms: 30_000,
        cooldown_ms: 30_000,
        max_cooldown_ms: 300_000,
    };
    const T: u64 = 1_800_000_000_000;

    fn opened() -> State {
        let mut state = State::default();
        for _ in 0..5 {
            state.report(Outcome::Failure, false, T, &SETTINGS);
        }
        state
    }

    #[test]
    fn five_failures_in_a_row_open_it_and_a_success_between_starts_over() {
        let mut state = State::default();
        for _ in 0..4 {
            state.report(Outcome::Failure, false, T, &SETTINGS);
        }
        assert_eq!(state.permit(T, 1), Permit::Call);
        state.report(Outcome::Success, false, T, &SETTINGS);
        for _ in 0..4 {
            state.report(Outcome::Failure, false, T, &SETTINGS);
        }
        assert_eq!(state.permit(T, 1), Permit::Call);
        state.report(Outcome::Failure, false, T, &SETTINGS);
        assert_eq!(state.permit(T, 1), Permit::Open { wait_ms: 30_000 });
    }

    #[test]
    fn the_operator_is_told_when_it_opens_and_when_it_closes() {
        let (mut state, closed) = (opened(), State::default());
        assert_eq!(state.change(&closed), Some("open"));
        let open = state;
        state.report(Outcome::Failure, false, T + 1, &SETTINGS);
        assert_eq!(state.change(&open), None, "it is open already");
        assert_eq!(state.permit(T + 30_000, 1), Permit::Probe);
        assert_eq!(state.change(&open), None);
        let mut again = state;
        again.report(Outcome::Failure, true, T + 30_000, &SETTINGS);
        assert_eq!(again.change(&state), Some("open"), "for longer");
        let mut well = state;
        well.report(Outcome::Success, true, T + 30_000, &SETTINGS);
        assert_eq!(well.change(&state), Some("closed"));
    }

    #[test]
    fn half_of_twenty_in_the_window_open_it_and_old_ones_do_not_count() {
        let alternate = |start: u64, step: u64| {
            let mut state = State::default();
            for call in 0..20 {
                let outcome = if call % 2 == 0 { Outcome::Success } else { Outcome::Failure };
                state.report(outcome, false, start + call * step, &SETTINGS);
            }
            state.permit(start + 20 * step, 1)
        };
        assert!(matches!(alternate(T, 100), Permit::Open { .. }));
        assert_eq!(alternate(T, 3_000), Permit::Call);
    }

    #[test]
    fn one_probe_at_a_time_and_its_claim_ends_by_itself() {
        let mut state = opened();
        let after = T + 30_000;
        assert_eq!(state.permit(after, 500), Permit::Probe);
        assert_eq!(state.permit(after + 499, 500), Permit::Open { wait_ms: 1 });
        assert_eq!(state.permit(after + 500, 500), Permit::Probe);
    }

    #[test]
    fn a_good_probe_closes_it_and_a_bad_one_doubles_the_wait_up_to_the_most() {
        let mut state = opened();
        let mut now = T + 30_000;
        for wait_ms in [60_000, 120_000, 240_000, 300_000, 300_000] {
            assert_eq!(state.permit(now, 500), Permit::Probe);
            state.report(Outcome::Failure, true, now, &SETTINGS);
            assert_eq!(state.permit(now, 500), Permit::Open { wait_ms });
            now += wait_ms;
        }
        assert_eq!(state.permit(now, 500), Permit::Probe);
        state.report(Outcome::Success, true, now, &SETTINGS);
        assert_eq!(state, State::default());
    }

    #[test]
    fn late_results_of_earlier_calls_move_nothing_while_it_is_open() {
        let mut state = opened();
        let before = state;
        state.report(Outcome::Failure, false, T + 10_000, &SETTINGS);
        state.report(Outcome::Success, false, T + 10_000, &SETTINGS);
        assert_eq!(state, before);
    }

    #[test]
    fn a_probe_whose_caller_left_frees_its_claim() {
        let mut state = opened();
        assert_eq!(state.permit(T + 30_000, 500), Permit::Probe);
        state.report(Outcome::Nothing, true, T + 30_001, &SETTINGS);
        assert_eq!(state.permit(T + 30_001, 500), Permit::Probe);
    }

    #[test]
    fn it_survives_shared_memory() {
        let mut state = opened();
        state.permit(T + 30_000, 500);
        assert_eq!(State::from_bytes(&state.to_bytes()), state);
        assert_eq!(State::from_bytes(b"\x07whatever"), State::default());
        assert_eq!(State::from_bytes(&[]), State::default());
    }

    #[test]
    fn a_rest_is_between_a_second_by_default_and_a_minute() {
        assert_eq!((rest_ms(None), rest_ms(Some(5_000)), rest_ms(Some(600_000)), rest_ms(Some(0))), (1_000, 5_000, 60_000, 1));
    }
}
