//! Steps worked out by hand, and properties over random runs.

use proptest::prelude::*;

use super::alpha::ONE;
use super::*;
use crate::congestion::{AlgorithmKind, PROFILES, Param};

const US: u64 = 1000;

/// 40 Gb/s with the paper's parameters, as in its testbed.
fn paper() -> CongestionConfig {
    CongestionConfig {
        algorithm: AlgorithmKind::Dcqcn,
        line_rate: Rate::from_gbps(40),
        ..CongestionConfig::paper()
    }
}

fn connectx() -> CongestionConfig {
    CongestionConfig {
        algorithm: AlgorithmKind::Dcqcn,
        line_rate: Rate::from_gbps(100),
        ..CongestionConfig::connectx()
    }
}

fn gbps(rate: Rate) -> f64 {
    rate.0 as f64 / 1e9
}

#[test]
fn paper_a_cnp_halves_the_rate_at_first_and_then_takes_half_of_alpha() {
    let mut rp = Dcqcn::new(&paper());
    assert_eq!(rp.limit(), None);
    rp.on_cnp(Nanos(0));
    // Alpha was 1: half of 40. It stays 1: 255/256 + 1/256.
    assert_eq!(
        (rp.rate(), rp.target()),
        (Rate::from_gbps(20), Rate::from_gbps(40))
    );
    assert_eq!(rp.alpha(Nanos(0)), ONE);
    // 50 us later: 20 to 10, and the target is the rate before.
    rp.on_cnp(Nanos(50 * US));
    assert_eq!(
        (rp.rate(), rp.target()),
        (Rate::from_gbps(10), Rate::from_gbps(20))
    );
    // 110 us of quiet: two periods of alpha, and two stages of the timer: 10 to 15, to 17.5.
    rp.advance(Nanos(160 * US));
    assert_eq!(rp.rate(), Rate(17_500_000_000));
    assert_eq!(rp.stages(), (2, 0));
    let alpha = f64::from(rp.alpha(Nanos(160 * US))) / f64::from(ONE);
    assert!((alpha - (255.0f64 / 256.0).powi(2)).abs() < 1e-8);
    rp.on_cnp(Nanos(160 * US));
    assert!((gbps(rp.rate()) - 17.5 * (1.0 - alpha / 2.0)).abs() < 1e-6);
    assert_eq!(rp.target(), Rate(17_500_000_000));
    let raised = f64::from(rp.alpha(Nanos(160 * US))) / f64::from(ONE);
    assert!((raised - (alpha * 255.0 / 256.0 + 1.0 / 256.0)).abs() < 1e-8);
}

#[test]
fn paper_the_timer_recovers_in_five_steps_and_then_adds_40_mbps_each() {
    let mut rp = Dcqcn::new(&paper());
    rp.on_cnp(Nanos(0));
    rp.on_cnp(Nanos(0));
    // 10 under a target of 20: half the way each 55 us.
    for (stage, rate) in [15.0, 17.5, 18.75, 19.375, 19.6875].into_iter().enumerate() {
        rp.advance(Nanos((stage as u64 + 1) * 55 * US - 1));
        assert_eq!(rp.stages().0 as usize, stage);
        rp.advance(Nanos((stage as u64 + 1) * 55 * US));
        assert_eq!(gbps(rp.rate()), rate);
    }
    assert_eq!(rp.target(), Rate::from_gbps(20));
    // The sixth step is additive: target 20.04, rate half-way.
    rp.advance(Nanos(6 * 55 * US));
    assert_eq!(rp.target(), Rate::from_mbps(20_040));
    assert_eq!(gbps(rp.rate()), (19.6875 + 20.04) / 2.0);
}

#[test]
fn paper_bytes_count_stages_of_their_own_and_both_past_five_is_hyper_increase() {
    let mut rp = Dcqcn::new(&paper());
    rp.on_cnp(Nanos(0));
    rp.on_cnp(Nanos(0));
    // 10 MB less a byte is no stage.
    rp.on_sent(9_999_999, Nanos(1));
    assert_eq!(rp.stages(), (0, 0));
    rp.on_sent(1, Nanos(2));
    assert_eq!((rp.stages(), gbps(rp.rate())), ((0, 1), 15.0));
    // Five more by bytes: the fifth is the last of fast recovery, the sixth is additive.
    rp.on_sent(40_000_000, Nanos(3));
    assert_eq!(rp.target(), Rate::from_gbps(20));
    rp.on_sent(10_000_000, Nanos(4));
    assert_eq!(rp.target(), Rate::from_mbps(20_040));
    // The timer's first six find bytes at six: additive. At its seventh both are past five.
    rp.advance(Nanos(6 * 55 * US));
    assert_eq!(
        (rp.stages(), rp.target()),
        ((6, 6), Rate::from_mbps(20_280))
    );
    rp.advance(Nanos(7 * 55 * US));
    assert_eq!(rp.target(), Rate::from_mbps(20_480));
    // A CNP ends it.
    rp.on_cnp(Nanos(7 * 55 * US + 1));
    assert_eq!(rp.stages(), (0, 0));
}

#[test]
fn paper_back_at_line_rate_the_queue_pair_is_no_longer_limited_and_alpha_is_remembered() {
    let mut rp = Dcqcn::new(&paper());
    rp.on_cnp(Nanos(0));
    // 20 under 40: after 36 halvings or so nothing is left.
    rp.advance(Nanos(60 * 55 * US));
    assert_eq!((rp.limit(), rp.next_change()), (None, None));
    assert_eq!(rp.rate(), Rate::from_gbps(40));
    let alpha = f64::from(rp.alpha(Nanos(60 * 55 * US))) / f64::from(ONE);
    assert!((alpha - (255.0f64 / 256.0).powi(60)).abs() < 1e-6);
    rp.on_cnp(Nanos(60 * 55 * US));
    assert!((gbps(rp.rate()) - 40.0 * (1.0 - alpha / 2.0)).abs() < 1e-4);
}

#[test]
fn connectx_a_cnp_waits_for_the_end_of_the_monitor_period() {
    let mut rp = Dcqcn::new(&connectx());
    rp.on_cnp(Nanos(100));
    // 1023/1024 of a half.
    let first = 100_000_000_000 - 100_000_000_000 * 1023 / 2048;
    assert_eq!(rp.rate(), Rate(first));
    assert_eq!(rp.next_change(), Some(Nanos(100 + 300 * US)));
    // Two CNPs in the same 4 us are one reduction, at the end of them; the boundaries follow from the first CNP.
    rp.on_cnp(Nanos(100 + 5 * US));
    rp.on_cnp(Nanos(100 + 7 * US));
    assert_eq!(rp.next_change(), Some(Nanos(100 + 8 * US)));
    rp.advance(Nanos(100 + 8 * US - 1));
    assert_eq!(rp.rate(), Rate(first));
    rp.advance(Nanos(100 + 8 * US));
    // Alpha: 5 quiet periods of 1 us, one with a CNP, one quiet, one with a CNP that ends just now.
    let (g, mut alpha) = (1019.0 / 1024.0, 1023.0 / 1024.0f64);
    for cnp in [false, false, false, false, false, true, false, true] {
        alpha = alpha * g + if cnp { 1.0 - g } else { 0.0 };
    }
    let expected = first as f64 * (1.0 - alpha / 2.0);
    assert!(
        (rp.rate().0 as f64 - expected).abs() < 1e3,
        "{:?} {expected}",
        rp.rate()
    );
    // No timer stage lies between: the target stays where it was, as clamp_tgt_rate is off.
    assert_eq!(rp.target(), Rate::from_gbps(100));
}

#[test]
fn connectx_the_target_moves_down_once_the_timer_raised_the_rate_unless_that_is_off() {
    for after_time in [true, false] {
        let mut config = connectx();
        config.dcqcn.clamp_tgt_rate_after_time_inc = after_time;
        let mut rp = Dcqcn::new(&config);
        rp.on_cnp(Nanos(0));
        rp.advance(Nanos(300 * US));
        let raised = rp.rate();
        assert_eq!(rp.stages(), (1, 0));
        rp.on_cnp(Nanos(301 * US));
        rp.advance(Nanos(304 * US));
        let target = if after_time {
            raised
        } else {
            Rate::from_gbps(100)
        };
        assert_eq!(rp.target(), target);
    }
    // Bytes move it in any case.
    let mut config = connectx();
    config.dcqcn.clamp_tgt_rate_after_time_inc = false;
    let mut rp = Dcqcn::new(&config);
    rp.on_cnp(Nanos(0));
    rp.on_sent(32767 * 64, Nanos(1));
    let raised = rp.rate();
    rp.on_cnp(Nanos(US));
    rp.advance(Nanos(4 * US));
    assert_eq!(rp.target(), raised);
}

#[test]
fn connectx_fast_recovery_is_one_step_then_5_mbps_then_50_once_bytes_are_past_it_too() {
    let mut rp = Dcqcn::new(&connectx());
    rp.on_cnp(Nanos(0));
    rp.on_cnp(Nanos(US));
    rp.advance(Nanos(4 * US));
    let target = rp.target();
    rp.advance(Nanos(304 * US));
    assert_eq!(rp.target(), target);
    // At line rate the target cannot rise: take it down first.
    rp.on_cnp(Nanos(305 * US));
    rp.advance(Nanos(308 * US));
    let target = rp.target().0;
    rp.advance(Nanos(908 * US));
    assert_eq!(
        (rp.stages(), rp.target()),
        ((2, 0), Rate(target + 5_000_000))
    );
    rp.on_sent(3 * 32767 * 64, Nanos(909 * US));
    // Bytes: stages 0 and 1 are additive, 2 finds both past 1.
    assert_eq!(
        (rp.stages(), rp.target()),
        ((2, 3), Rate(target + 65_000_000))
    );
}

#[test]
fn connectx_min_dec_fac_bounds_a_single_reduction_and_gd_10_takes_alpha() {
    let mut config = connectx();
    config.dcqcn.gd = 10;
    config.dcqcn.min_dec_fac = 0;
    let mut rp = Dcqcn::new(&config);
    rp.on_cnp(Nanos(0));
    // Alpha 1023/1024 of 100 Gb/s is taken.
    assert_eq!(rp.rate(), Rate(97_656_250));
    config.dcqcn.min_dec_fac = 75;
    let mut rp = Dcqcn::new(&config);
    rp.on_cnp(Nanos(0));
    assert_eq!(rp.rate(), Rate::from_gbps(75));
    config.dcqcn.min_dec_fac = 100;
    let mut rp = Dcqcn::new(&config);
    rp.on_cnp(Nanos(0));
    assert_eq!(rp.rate(), Rate::from_gbps(100));
}

#[test]
fn connectx_the_first_cnp_may_set_the_rate() {
    let mut config = connectx();
    config.dcqcn.rate_to_set_on_first_cnp = 85_000;
    let mut rp = Dcqcn::new(&config);
    rp.on_cnp(Nanos(0));
    assert_eq!(
        (rp.rate(), rp.target()),
        (Rate::from_gbps(85), Rate::from_gbps(85))
    );
    rp.on_cnp(Nanos(US));
    rp.advance(Nanos(4 * US));
    assert!(rp.rate() < Rate::from_gbps(44));
}

#[test]
fn changed_parameters_hold_from_then_on() {
    let mut config = connectx();
    let mut rp = Dcqcn::new(&config);
    rp.on_cnp(Nanos(0));
    config.dcqcn.time_reset = 10;
    rp.configure(&config, Nanos(600 * US));
    // Two stages of the old timer, and the next one 10 us from now.
    assert_eq!(rp.stages(), (2, 0));
    assert_eq!(rp.next_change(), Some(Nanos(610 * US)));
    // A lower line rate takes the rate with it.
    config.line_rate = Rate::from_gbps(10);
    rp.configure(&config, Nanos(601 * US));
    assert_eq!((rp.rate(), rp.limit()), (Rate::from_gbps(10), None));
}

#[derive(Clone, Debug)]
enum Event {
    Cnp,
    Sent(u32),
    Quiet,
}

fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
    let gap = prop_oneof![0u64..5_000, 0u64..200_000, 0u64..50_000_000];
    let event = prop_oneof![
        3 => Just(Event::Cnp),
        3 => (0u32..5_000).prop_map(Event::Sent),
        1 => (0u32..40_000_000).prop_map(Event::Sent),
        2 => Just(Event::Quiet),
    ];
    proptest::collection::vec((gap, event), 1..60)
}

fn any_config() -> impl Strategy<Value = CongestionConfig> {
    let values = proptest::collection::vec(any::<u64>(), Param::all().len());
    (0..PROFILES.len(), any::<u64>(), values, 0u64..3).prop_map(
        |(profile, changed, values, line)| {
            let mut config = CongestionConfig::profile(PROFILES[profile]).unwrap();
            config.line_rate =
                Rate([1_000_000_000, 100_000_000_000, 800_000_000_000][line as usize]);
            for ((i, param), value) in Param::all().iter().enumerate().zip(values) {
                if changed >> i & 1 != 0 {
                    // Small values are the interesting ones.
                    let range = param.max - param.min + 1;
                    let value = param.min + value % range.min(2000);
                    param.set(&mut config, value.min(param.max)).unwrap();
                }
            }
            config.fixed_rate = Rate(0);
            config.dcqcn.min_rate = config.dcqcn.min_rate.min(1000);
            if config.dcqcn.max_rate != 0 {
                // 1,000 Mb/s is the slowest of the lines.
                let floor = config.dcqcn.min_rate;
                config.dcqcn.max_rate = config.dcqcn.max_rate.clamp(floor, 1000);
            }
            config.validate().unwrap();
            config
        },
    )
}

fn apply(rp: &mut Dcqcn, event: &Event, now: Nanos) {
    match event {
        Event::Cnp => rp.on_cnp(now),
        Event::Sent(bytes) => rp.on_sent(*bytes, now),
        Event::Quiet => rp.advance(now),
    }
}

fn state(rp: &Dcqcn, now: Nanos) -> (Rate, Rate, u32, (u32, u32), Option<Nanos>, u64) {
    (
        rp.rate(),
        rp.target(),
        rp.alpha(now),
        rp.stages(),
        rp.next_change(),
        rp.bytes,
    )
}

proptest! {
    /// Rate within [min, max], target not below it, alpha within [0, 1], whatever the parameters.
    #[test]
    fn rates_and_alpha_stay_in_their_bounds(config in any_config(), events in events()) {
        let mut rp = Dcqcn::new(&config);
        let min = Rate::from_mbps(u64::from(config.dcqcn.min_rate));
        let mut now = Nanos(0);
        for (gap, event) in &events {
            now = now + Nanos(*gap);
            apply(&mut rp, event, now);
            prop_assert!(rp.rate() >= min && rp.rate() <= config.max_rate(), "{:?}", rp);
            prop_assert!(rp.target() >= rp.rate() && rp.target() <= config.max_rate(), "{:?}", rp);
            prop_assert!(rp.alpha(now) <= ONE);
            prop_assert!(rp.next_change().is_none_or(|at| at > now));
            prop_assert_eq!(rp.limit().is_some(), rp.next_change().is_some());
        }
    }

    /// One queue pair is looked at on each of its timers, another one at its events only, one at each microsecond
    /// too: they agree to the last bit.
    #[test]
    fn catching_up_gives_what_serving_each_timer_gives(config in any_config(), events in events()) {
        let mut lazy = Dcqcn::new(&config);
        let mut busy = lazy.clone();
        let mut restless = lazy.clone();
        let mut now = Nanos(0);
        for (gap, event) in &events {
            let until = now + Nanos(*gap);
            // A long idle time has millions of timers with some parameters.
            for _ in 0..20_000 {
                match busy.next_change() {
                    Some(at) if at <= until => busy.advance(at),
                    _ => break,
                }
            }
            for _ in 0..300 {
                now = now + Nanos(US);
                if now > until {
                    break;
                }
                restless.advance(now);
                restless.alpha(now);
            }
            now = until;
            apply(&mut lazy, event, now);
            apply(&mut busy, event, now);
            apply(&mut restless, event, now);
            prop_assert_eq!(state(&lazy, now), state(&busy, now));
            prop_assert_eq!(state(&lazy, now), state(&restless, now));
        }
    }
}

/// Days of idleness are settled in a few steps, not in one for each timer: with `ionic` they are 10^11.
#[test]
fn a_queue_pair_that_was_idle_for_days_catches_up_at_once() {
    for name in PROFILES {
        let mut config = CongestionConfig::profile(name).unwrap();
        config.dcqcn.ai_rate = 1;
        config.dcqcn.hai_rate = 1;
        config.line_rate = Rate::from_gbps(800);
        let mut rp = Dcqcn::new(&config);
        let mut now = Nanos(0);
        for _ in 0..200 {
            now = now + Nanos(50 * US);
            rp.on_cnp(now);
        }
        let days = Nanos(3 * 86_400_000_000_000);
        let until = Nanos(if config.dcqcn.time_reset == 1 {
            100_000 * US
        } else {
            days.0
        });
        rp.advance(now + until);
        assert!(rp.rate() > Rate::from_gbps(90), "{name} {:?}", rp.rate());
        rp.advance(now + days);
        assert_eq!(rp.limit(), None, "{name}");
    }
}
