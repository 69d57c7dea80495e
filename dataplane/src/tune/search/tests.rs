use super::*;

/// A machine that is made up: a figure for each setting, noise of each run and of each turn, and a drift.
struct MadeUp<F> {
    truth: F,
    random: Random,
    noise: f64,
    runs: u32,
    /// Runs after which somebody wants an end.
    interrupted: u32,
}

impl<F: Fn(&Setting) -> Vec<f64>> MadeUp<F> {
    fn new(seed: u64, noise: f64, truth: F) -> MadeUp<F> {
        MadeUp {
            truth,
            random: Random::new(seed),
            noise,
            runs: 0,
            interrupted: u32::MAX,
        }
    }
}

impl<F: Fn(&Setting) -> Vec<f64>> Measure for MadeUp<F> {
    fn measure(&mut self, setting: &Setting) -> io::Result<Vec<f64>> {
        self.runs += 1;
        // The machine slows down and recovers, and now and then somebody else has the CPU.
        let drift = 1.0 + 0.3 * (f64::from(self.runs) / 100.0).sin();
        let mut disturbed = |figure: f64| {
            let own = (self.random.unit() - 0.5) * 2.0 * self.noise;
            let stolen = match self.random.unit() {
                x if x < 0.05 => 0.5,
                _ => 1.0,
            };
            figure * drift * own.exp() * stolen
        };
        Ok((self.truth)(setting)
            .into_iter()
            .map(&mut disturbed)
            .collect())
    }

    fn spent(&self) -> Duration {
        Duration::from_millis(20) * self.runs
    }

    fn is_interrupted(&self) -> bool {
        self.runs >= self.interrupted
    }
}

const SIZES: [usize; 5] = [3, 4, 5, 2, 3];
const DEFAULT: [usize; 5] = [2, 3, 4, 0, 1];

fn tuned<F: Fn(&Setting) -> Vec<f64>>(seed: u64, noise: f64, truth: F) -> Found {
    let plan = Plan {
        seed,
        ..Plan::default()
    };
    let mut world = MadeUp::new(seed, noise, truth);
    search(&mut world, &SIZES, &DEFAULT.to_vec(), &plan, &mut |_| {}).unwrap()
}

#[test]
fn a_known_optimum_is_found_with_its_gain() {
    // Two knobs matter: together 12 % by 8 %.
    let truth = |setting: &Setting| {
        let first = [0.9, 1.12, 1.0][setting[0]];
        let third = [0.8, 0.9, 1.08, 1.03, 1.0][setting[2]];
        vec![first * third]
    };
    let found = tuned(1, 0.03, truth);
    assert!(found.better);
    assert_eq!(found.best, [1, 3, 2, 0, 1]);
    let gain = found.gain.unwrap();
    let true_gain = 1.12 * 1.08;
    assert!(gain.low <= true_gain && true_gain <= gain.high, "{gain:?}");
    assert!((gain.ratio / true_gain - 1.0).abs() < 0.02, "{gain:?}");
    let adopted: Vec<_> = found.steps.iter().filter(|step| step.adopted).collect();
    assert_eq!(adopted.len(), 2);
    assert_eq!(
        (adopted[0].knob, adopted[0].value),
        (0, 1),
        "the larger gain first"
    );
    assert!((found.noise.ratio - 1.0).abs() < 0.1, "{:?}", found.noise);
    assert!(found.spent < Duration::from_secs(62), "{:?}", found.spent);
}

#[test]
fn knobs_that_help_only_together_with_another_are_found_after_it() {
    // The second one pays once the first is set.
    let truth = |setting: &Setting| match (setting[0], setting[4]) {
        (1, 2) => vec![1.3],
        (1, _) => vec![1.1],
        (_, 2) => vec![0.95],
        _ => vec![1.0],
    };
    assert_eq!(tuned(2, 0.02, truth).best, [1, 3, 4, 0, 2]);
}

#[test]
fn of_several_workloads_the_mean_counts_and_each_has_its_gain() {
    // What helps one by 2 % costs the other 10 %; another value helps both.
    let truth = |setting: &Setting| match (setting[0], setting[1]) {
        (0, 3) => vec![1.02, 0.9],
        (2, 0) => vec![1.05, 1.1],
        _ => vec![1.0, 1.0],
    };
    let found = tuned(3, 0.01, truth);
    assert_eq!(found.best, [2, 0, 4, 0, 1]);
    let [one, two] = found.workloads[..] else {
        panic!("two workloads");
    };
    assert!((one.ratio - 1.05).abs() < 0.01 && (two.ratio - 1.1).abs() < 0.01);
}

#[test]
fn noise_alone_is_adopted_no_more_often_than_said() {
    // Some five in two hundred would do: one in forty for a gain that is none, and none of the half that are losses.
    let searches = 200;
    let adopted = (0..searches).filter(|&seed| tuned(seed, 0.05, |_| vec![1.0, 1.0]).better);
    let adopted = adopted.count();
    assert!(adopted <= searches as usize / 20, "{adopted} of {searches}");
}

#[test]
fn a_gain_that_is_not_worth_it_is_left() {
    let truth = |setting: &Setting| vec![if setting[3] == 1 { 1.004 } else { 1.0 }];
    let found = tuned(4, 0.002, truth);
    assert!(!found.better && found.best == DEFAULT);
}

#[test]
fn losses_are_left_and_said() {
    let truth = |setting: &Setting| vec![if *setting == DEFAULT { 1.0 } else { 0.9 }];
    let found = tuned(5, 0.01, truth);
    assert!(!found.better && found.gain.is_none() && found.best == DEFAULT);
    let all: usize = SIZES.iter().map(|size| size - 1).sum();
    assert_eq!(found.tried.len(), all, "each value was tried");
    assert!(found.tried.iter().all(|tried| tried.ratio < 1.0));
}

#[test]
fn a_budget_of_nothing_ends_without_a_word() {
    let mut world = MadeUp::new(1, 0.01, |setting: &Setting| {
        vec![1.0 + setting.iter().sum::<usize>() as f64]
    });
    let plan = Plan {
        budget: Duration::ZERO,
        ..Plan::default()
    };
    let found = search(&mut world, &SIZES, &DEFAULT.to_vec(), &plan, &mut |_| {}).unwrap();
    assert!(!found.better && found.tried.is_empty());
    let no_knobs = search(&mut world, &[], &Vec::new(), &Plan::default(), &mut |_| {}).unwrap();
    assert!(!no_knobs.better && no_knobs.best.is_empty());
}

#[test]
fn the_same_seed_searches_the_same_way() {
    let truth = |setting: &Setting| vec![1.0 + 0.05 * setting[1] as f64];
    let (one, two) = (tuned(9, 0.05, truth), tuned(9, 0.05, truth));
    assert_eq!(format!("{one:?}"), format!("{two:?}"));
}

#[test]
fn an_error_ends_the_search() {
    struct Broken;
    impl Measure for Broken {
        fn measure(&mut self, _: &Setting) -> io::Result<Vec<f64>> {
            Err(io::Error::other("no memory"))
        }
        fn spent(&self) -> Duration {
            Duration::ZERO
        }
    }
    let plan = Plan::default();
    let error = search(&mut Broken, &SIZES, &DEFAULT.to_vec(), &plan, &mut |_| {}).unwrap_err();
    assert_eq!(error.to_string(), "no memory");
}

/// One knob with a value that is better by far.
fn better(setting: &Setting) -> Vec<f64> {
    vec![[0.9, 1.3, 1.0][setting[0]]]
}

#[test]
fn what_the_time_did_not_suffice_for_is_told() {
    let plan = |seconds| Plan {
        budget: Duration::from_secs(seconds),
        ..Plan::default()
    };
    let searched = |seconds| {
        let mut world = MadeUp::new(3, 0.01, better);
        let default = DEFAULT.to_vec();
        search(&mut world, &SIZES, &default, &plan(seconds), &mut |_| {}).unwrap()
    };
    // The noise takes 18 runs, a turn of all that race another 24: the time ends in the second or third one.
    let found = searched(2);
    assert!(found.steps.is_empty() && !found.better && !found.interrupted);
    // Beside one that had luck, perhaps.
    let is = |tried: &&Tried| (tried.knob, tried.value) == (0, 1);
    let knob = found.undecided.iter().find(is);
    assert!(
        knob.is_some_and(|knob| knob.ratio > 1.1),
        "{:?}",
        found.undecided
    );
    let found = searched(600);
    assert!(
        found.better && found.undecided.is_empty(),
        "{:?}",
        found.undecided
    );
}

#[test]
fn an_end_from_outside_leaves_what_is_known_and_adopts_nothing() {
    for interrupted in [1, 5, 18, 40, 300, 600] {
        let mut world = MadeUp::new(3, 0.01, better);
        world.interrupted = interrupted;
        let plan = Plan {
            budget: Duration::from_secs(600),
            ..Plan::default()
        };
        let found = search(&mut world, &SIZES, &DEFAULT.to_vec(), &plan, &mut |_| {}).unwrap();
        assert!(found.interrupted && !found.better, "{interrupted}");
        assert_eq!(
            (found.best.as_slice(), found.figures.len()),
            (&DEFAULT[..], 1)
        );
        let runs = world.runs;
        assert!(runs <= interrupted + 2, "{runs} after {interrupted}");
    }
}
