use super::*;
use crate::control::query;
use crate::control::testing::{FakeLcore, config};
use crate::lcore::message::Reply;
use std::path::PathBuf;
use std::sync::Arc;

fn shared() -> (Shared, Arc<FakeLcore>) {
    let (lcore, _closed) = FakeLcore::new();
    let shared = Shared::new(config(PathBuf::from("/nonexistent/r.sock")), lcore.clone());
    (shared, lcore)
}

const STRANGER: u32 = 4711;

fn ask(shared: &Shared, uid: u32, query: &str) -> Result<CongestionReply, CommandError> {
    let peer = Peer { pid: 1, uid };
    let answer = query::answer(shared, peer, query.as_bytes())?;
    Ok(serde_json::from_slice(&answer).unwrap())
}

fn write(shared: &Shared, uid: u32, path: &str, text: &str) -> Result<(), CommandError> {
    let peer = Peer { pid: 1, uid };
    attribute(shared, peer, format!("{path}\0{text}").as_bytes())
}

fn line<'r>(reply: &'r CongestionReply, device: usize, key: &str) -> &'r SettingLine {
    let settings = &reply.devices[device].settings;
    let found = settings.iter().find(|line| line.key == key);
    found.unwrap_or_else(|| panic!("no {key}"))
}

#[test]
fn settings_are_shown_with_where_they_come_from() {
    let (shared, lcore) = shared();
    let all = ask(&shared, STRANGER, r#"{"query":"congestion"}"#).unwrap();
    assert_eq!(all.devices.len(), 2);
    let rate = line(&all, 1, "rpg_ai_rate");
    assert_eq!((rate.value.as_str(), rate.from.as_str()), ("5", "default"));
    assert_eq!(rate.unit, "Mb/s");
    assert_eq!(all.devices[0].value("algorithm"), "dcqcn");
    assert_eq!(all.devices[0].value("pfc.mode"), "off");
    let set = r#"{"query":"congestion-set","device":"roce1","settings":{"rpg_ai_rate":40,"cnp_moderation":"per-ip"}}"#;
    let changed = ask(&shared, 0, set).unwrap();
    assert_eq!(changed.devices.len(), 1);
    let rate = line(&changed, 0, "rpg_ai_rate");
    let seen = (
        rate.value.as_str(),
        rate.default.as_str(),
        rate.from.as_str(),
    );
    assert_eq!(seen, ("40", "5", "set"));
    assert_eq!(changed.devices[0].value("cnp_moderation"), "per-ip");
    let other = ask(&shared, 0, r#"{"query":"congestion","device":"roce0"}"#).unwrap();
    assert_eq!(line(&other, 0, "rpg_ai_rate").value, "5");
    // Only the NIC that it is about heard of it, and of all.
    let commands = lcore.state().commands.clone();
    assert_eq!(commands.len(), 1);
    assert!(
        commands[0].1.starts_with("SetCongestion { nic: 1"),
        "{commands:?}"
    );
    assert!(commands[0].1.contains("ai_rate: 40"), "{commands:?}");
}

#[test]
fn a_profile_comes_before_the_values_that_change_it() {
    let (shared, _lcore) = shared();
    let set = r#"{"query":"congestion-set","settings":{"clamp_tgt_rate":"off","profile":"paper","fixed_rate":"5Gb/s"}}"#;
    let reply = ask(&shared, 0, set).unwrap();
    for device in &reply.devices {
        assert_eq!(device.value("profile"), "paper");
        assert_eq!(device.value("rpg_threshold"), "5");
        assert_eq!(device.value("clamp_tgt_rate"), "0");
        assert_eq!(device.value("fixed_rate"), "5Gb/s");
        assert_eq!(device.value("algorithm"), "dcqcn");
    }
    assert_eq!(line(&reply, 0, "rpg_ai_rate").default, "40");
    assert_eq!(line(&reply, 0, "clamp_tgt_rate").default, "1");
    // Of the profile itself it is that of a NIC that names none.
    let profile = line(&reply, 0, "profile");
    assert_eq!(
        (profile.value.as_str(), profile.default.as_str()),
        ("paper", "connectx")
    );
}

#[test]
fn a_profile_leaves_what_was_set() {
    let (shared, _lcore) = shared();
    for set in [
        r#"{"query":"congestion-set","settings":{"rpg_ai_rate":77,"cnp_moderation":"per-ip"}}"#,
        r#"{"query":"congestion-set","settings":{"profile":"paper"}}"#,
    ] {
        ask(&shared, 0, set).unwrap();
    }
    let now = ask(&shared, 0, r#"{"query":"congestion"}"#).unwrap();
    let values = ["rpg_ai_rate", "cnp_moderation", "rpg_hai_rate"];
    let values = values.map(|key| now.devices[0].value(key));
    assert_eq!(values, ["77", "per-ip", "200"]);
}

#[test]
fn an_order_that_cannot_be_carried_out_changes_nothing() {
    let (shared, lcore) = shared();
    let before = ask(&shared, 0, r#"{"query":"congestion"}"#).unwrap();
    for (settings, said) in [
        (r#"{"rpg_ai_rate":40,"rpg_gd":12}"#, "must be from 1 to 11"),
        (
            r#"{"rpg_ai_rate":40,"rpg_hai_rat":12}"#,
            "did you mean `rpg_hai_rate`?",
        ),
        (
            r#"{"rpg_ai_rate":40,"pfc.mod":"off"}"#,
            "did you mean `pfc.mode`?",
        ),
        (
            r#"{"rpg_ai_rate":40,"rpg_min_rate":200000}"#,
            "rpg_min_rate",
        ),
        (
            r#"{"rpg_ai_rate":40,"pfc.mode":"pfc","pfc.priorities":""}"#,
            "no priority",
        ),
        (
            r#"{"pfc.mode":"nonsense"}"#,
            "roce0: pfc.mode = \"nonsense\": must be one of off, pfc, global",
        ),
        (r#"{"profile":"papper"}"#, "paper, connectx, ionic"),
        (r#"{"algorithm":"dcqcm"}"#, "fixed-rate"),
        (
            r#"{"rpg_ai_rate":40,"rp_ai_rate":41}"#,
            "rpg_ai_rate is given twice (`rp_ai_rate` is another name of `rpg_ai_rate`)",
        ),
        (
            r#"{"foo":1}"#,
            "`roceline congestion show --all` lists all keys",
        ),
        (r#"{"rpg_ai_rate":"-1"}"#, "rpg_ai_rate"),
        (r#"{"rpg_ai_rate":"1.5Mb/s"}"#, "a whole number of Mb/s"),
        ("{}", "nothing to set"),
    ] {
        let query = format!(r#"{{"query":"congestion-set","settings":{settings}}}"#);
        let error = ask(&shared, 0, &query).unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL, "{settings}");
        assert!(error.to_string().contains(said), "{settings}: {error}");
    }
    let unknown = r#"{"query":"congestion-set","device":"roce7","settings":{"rpg_gd":10}}"#;
    assert_eq!(ask(&shared, 0, unknown).unwrap_err().errno(), libc::ENODEV);
    assert!(lcore.state().commands.is_empty());
    let after = ask(&shared, 0, r#"{"query":"congestion"}"#).unwrap();
    assert_eq!(after, before);
}

#[test]
fn an_lcore_that_refuses_leaves_all_nics_as_they_were() {
    let (shared, lcore) = shared();
    lcore.state().next = Some(Reply::Failed {
        errno: libc::EBUSY,
        reason: "not now".into(),
    });
    let set = r#"{"query":"congestion-set","settings":{"rpg_ai_rate":40}}"#;
    assert_eq!(ask(&shared, 0, set).unwrap_err().to_string(), "not now");
    let after = ask(&shared, 0, r#"{"query":"congestion"}"#).unwrap();
    assert_eq!(line(&after, 0, "rpg_ai_rate").value, "5");
}

#[test]
fn only_operators_change_anything() {
    let (shared, lcore) = shared();
    let set = r#"{"query":"congestion-set","settings":{"rpg_ai_rate":40}}"#;
    let error = ask(&shared, STRANGER, set).unwrap_err();
    assert_eq!(error.errno(), libc::EPERM);
    let path = "/sys/class/infiniband/roce0/ecn/roce_rp/rpg_ai_rate";
    for text in ["", "40\n"] {
        let error = write(&shared, STRANGER, path, text).unwrap_err();
        assert_eq!(error.errno(), libc::EPERM);
    }
    assert!(lcore.state().commands.is_empty());
}

#[test]
fn files_change_what_they_name() {
    let (shared, lcore) = shared();
    let path = "/sys/class/infiniband/roce1/ecn/roce_rp/rpg_ai_rate";
    write(&shared, 0, path, "").unwrap();
    assert!(lcore.state().commands.is_empty(), "it was only asked");
    write(&shared, 0, path, "40\n").unwrap();
    write(
        &shared,
        0,
        "/sys/class/net/roce1/ecn/roce_np/enable/3",
        "0\n",
    )
    .unwrap();
    write(
        &shared,
        0,
        "/sys/class/infiniband/roce1/cc_params/np_cnp_dscp",
        "46",
    )
    .unwrap();
    let now = ask(&shared, 0, r#"{"query":"congestion","device":"roce1"}"#).unwrap();
    let values = ["rpg_ai_rate", "np_enable", "cnp_dscp"].map(|key| now.devices[0].value(key));
    assert_eq!(values, ["40", "247", "46"]);
    for (path, text, errno) in [
        (path, "much\n", libc::EINVAL),
        (path, "\n", libc::EINVAL),
        (path, "4000001\n", libc::EINVAL),
        (
            "/sys/class/net/roce1/ecn/roce_np/enable/3",
            "2",
            libc::EINVAL,
        ),
        (
            "/sys/class/net/roce1/ecn/roce_np/enable/9",
            "1",
            libc::ENOENT,
        ),
        (
            "/sys/class/net/roce9/ecn/roce_np/enable/3",
            "1",
            libc::ENODEV,
        ),
        ("/etc/passwd", "1", libc::ENOENT),
    ] {
        let error = write(&shared, 0, path, text).unwrap_err();
        assert_eq!(error.errno(), errno, "{path} {text:?}: {error}");
    }
    let peer = Peer { pid: 1, uid: 0 };
    for payload in [&b"no NUL"[..], b"\xff\0\xff", b""] {
        assert_eq!(
            attribute(&shared, peer, payload).unwrap_err().errno(),
            libc::EINVAL
        );
    }
}
