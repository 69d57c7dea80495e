use roceline_engine::congestion::{CnpModeration, Param};

use super::*;

fn set(settings: &mut Settings, key: &str, text: &str) -> Result<(), String> {
    settings.set(key, text).map_err(|error| error.to_string())
}

/// What is shown is what is taken.
#[test]
fn every_value_that_is_shown_can_be_set() {
    for profile in PROFILES {
        let mut settings = Settings::default();
        settings.take_profile(profile);
        settings.set("pfc.dscp", "46:5,8:0").unwrap();
        settings.set("pfc.mode", "pfc").unwrap();
        settings.set("fixed_rate", "1.5Gb/s").unwrap();
        let mut other = Settings::default();
        for value in settings.values() {
            set(&mut other, &value.key, &value.value).unwrap_or_else(|error| panic!("{error}"));
        }
        assert_eq!(other.values(), settings.values());
        assert_eq!(settings.validate(4200), Ok(()));
    }
}

/// A profile is for what nobody set; whose CNPs are counted is of none.
#[test]
fn what_was_set_survives_a_profile() {
    let mut settings = Settings::default();
    // The first one to what it is anyhow.
    for (key, text) in [
        ("rp_ai_rate", "5"),
        ("cnp_802p_prio", "5"),
        ("cnp_prio_mode", "1"),
        ("min_time_between_cnps", "7"),
    ] {
        settings.set(key, text).unwrap();
    }
    settings.congestion.np.cnp_moderation = CnpModeration::PerIp;
    for profile in ["paper", "ionic", "connectx", "paper"] {
        settings.set("profile", profile).unwrap();
        let (rp, np) = (settings.congestion.dcqcn, settings.congestion.np);
        let given = (rp.ai_rate, np.cnp_802p_prio, np.min_time_between_cnps);
        assert_eq!(given, (5, 5, 7), "{profile}");
        assert!(np.cnp_prio_of_qp, "{profile}");
        assert_eq!(np.cnp_moderation, CnpModeration::PerIp, "{profile}");
        let whole = CongestionConfig::profile(profile).unwrap();
        assert_eq!(rp.hai_rate, whole.dcqcn.hai_rate, "{profile}");
    }
}

#[test]
fn dctcp_wants_a_notification_for_each_mark() {
    let mut settings = Settings::default();
    assert_eq!(settings.warning(), None);
    settings.set("algorithm", "dctcp").unwrap();
    assert_eq!(settings.warning(), Some(DCTCP_NEEDS));
    settings.set("min_time_between_cnps", "0").unwrap();
    assert_eq!(settings.warning(), None);
}

#[test]
fn values_have_units_of_their_own() {
    let mut settings = Settings::default();
    for (key, text, value) in [
        ("rpg_ai_rate", "40", "40"),
        ("rpg_ai_rate", "1Gb/s", "1000"),
        ("rp_ai_rate", "0x10", "16"),
        ("rpg_time_reset", "55us", "55"),
        ("rpg_time_reset", "1.5ms", "1500"),
        ("cnp_delay", "55us", "55000"),
        ("cnp_moderation", "per-ip", "per-ip"),
        ("cnp_moderation", "0", "per-qp"),
        ("clamp_tgt_rate", "on", "1"),
        ("clamp_tgt_rate", "false", "0"),
        ("line_rate", "25Gb/s", "25Gb/s"),
        ("fixed_rate", "line", "line"),
        ("pfc.priorities", "3, 4", "3,4"),
        ("pfc.watchdog_tx_limit", "off", "0ns"),
        ("pfc.xoff_bytes", "64KiB", "65536"),
        ("pfc.xoff_bytes", "auto", "auto"),
        ("pfc.trust", "pcp", "pcp"),
    ] {
        set(&mut settings, key, text).unwrap_or_else(|error| panic!("{error}"));
        let name = Param::find(key).map_or(key, |param| param.name);
        let values = settings.values();
        let shown = values.iter().find(|value| value.key == name).unwrap();
        assert_eq!(shown.value, value, "{key} = {text}");
    }
}

#[test]
fn nonsense_is_refused_with_what_would_be_right() {
    let before = Settings::default();
    for (key, text, says) in [
        ("rpg_gd", "12", "rpg_gd = \"12\": must be from 1 to 11"),
        ("rpg_time_reset", "0", "must be from 1 to 131071, in us"),
        ("rpg_time_reset", "10ns", "must be a whole number of us"),
        (
            "rpg_ai_rate",
            "fast",
            "must be from 1 to 4000000, in Mb/s, or a rate with its unit",
        ),
        ("rpg_byte_reset", "many", "must be from 0 to"),
        ("clamp_tgt_rate", "2", "must be false (0) or true (1)"),
        (
            "cnp_moderation",
            "per-host",
            "must be per-qp (0) or per-ip (1)",
        ),
        ("algorithm", "", "must be one of none, "),
        ("profile", "cx7", "must be one of paper, connectx, ionic"),
        ("line_rate", "0", "must be a rate"),
        ("pfc.mode", "on", "must be one of off, pfc, global"),
        ("pfc.priorities", "8", "0 to 7"),
        ("pfc.dscp", "46", "DSCP:PRIORITY"),
        ("pfc.buffer_bytes", "1", "4096"),
        ("pfc.quanta", "0", "from 1 to 65535"),
        ("pfc.watchdog_rx_limit", "2", "must be a time with its unit"),
        ("rpg_speed", "1", "unknown key `rpg_speed`"),
        ("pfc.speed", "1", "unknown key `pfc.speed`"),
    ] {
        let mut settings = before;
        let error = set(&mut settings, key, text).unwrap_err();
        assert!(error.contains(says), "{key} = {text}: {error}");
        assert_eq!(settings, before, "{key} = {text}");
    }
}

#[test]
fn what_does_not_go_together_is_refused() {
    let mut settings = Settings::default();
    settings.set("line_rate", "1Gb/s").unwrap();
    settings.set("rpg_min_rate", "2Gb/s").unwrap();
    let error = settings.validate(4200).unwrap_err().to_string();
    assert!(error.contains("rpg_min_rate"), "{error}");
    let mut settings = Settings::default();
    settings.set("pfc.mode", "pfc").unwrap();
    settings.set("pfc.buffer_bytes", "8192").unwrap();
    let error = settings.validate(4200).unwrap_err().to_string();
    assert!(error.contains("buffer_bytes"), "{error}");
}

/// As mlx5's driver has it: whoever writes the priority of CNPs wants that one.
#[test]
fn the_priority_of_notifications_ends_their_other_mode() {
    let mut settings = Settings::default();
    settings.set("np_cnp_prio_mode", "1").unwrap();
    settings.set("rtt_resp_dscp_valid", "1").unwrap();
    settings.set("rtt_resp_dscp", "46").unwrap();
    let np = settings.congestion.np;
    assert!(np.cnp_prio_of_qp && np.rtt_resp_dscp_valid && np.rtt_resp_dscp == 46);
    settings.set("np_cnp_prio", "5").unwrap();
    let np = settings.congestion.np;
    assert_eq!((np.cnp_prio_of_qp, np.cnp_802p_prio), (false, 5));
    let files = files(&settings);
    for name in ["np_cnp_prio_mode", "rtt_resp_dscp_valid", "rtt_resp_dscp"] {
        let path = format!("cc_params/{name}");
        assert!(files.iter().any(|(file, _)| *file == path), "{path}");
    }
}
