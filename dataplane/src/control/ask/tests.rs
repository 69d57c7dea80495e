use std::path::PathBuf;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};

use super::*;
use crate::capture::request::{Capture, Start};
use crate::control::context::Context;
use crate::control::seqpacket::Peer;
use crate::control::testing::{config, open_request, own_memory, own_peer};
use crate::control::{LcorePort, capture, query};
use crate::impair::Wiring;
use crate::lcore::message::{ImpairCommand, Snapshot};

/// Three lcores, all of which serve all NICs, and what each of them was told that changes something.
struct Three {
    told: Mutex<Vec<(u32, String)>>,
    /// Which of them does not make which change.
    fails: Mutex<fn(u32, &str) -> bool>,
    /// It does not answer, instead of to refuse.
    silent: bool,
    /// Keeps the ways back to those that wait open.
    waiting: Mutex<Vec<SyncSender<Reply>>>,
}

impl LcorePort for Three {
    fn send(&self, lcore: u32, request: Request) -> Result<(), SendError> {
        let change = match &request.command {
            Command::SetLink { up, .. } => format!("up {up}"),
            Command::SetCongestion { nic, settings } => {
                let values = settings.values();
                let gd = values.iter().find(|value| value.key == "rpg_gd").unwrap();
                format!("nic {nic} gd {}", gd.value)
            }
            Command::SetGids { gids, .. } => format!("{} gids", gids.len()),
            Command::Impair(ImpairCommand::Add { .. }) => "add".into(),
            Command::Impair(ImpairCommand::Remove { .. }) => "remove".into(),
            Command::AddTap(_) => "tap".into(),
            Command::RemoveTap(_) => "no tap".into(),
            Command::Open(_) => format!("open {}", request.context.number()),
            Command::Close => format!("close {}", request.context.number()),
            _ => String::new(),
        };
        let fails = !change.is_empty() && self.fails.lock().unwrap()(lcore, &change);
        if !change.is_empty() {
            self.told.lock().unwrap().push((lcore, change));
        }
        if fails && self.silent {
            self.waiting.lock().unwrap().push(request.reply);
            return Ok(());
        }
        let answer = match request.command {
            _ if fails => Reply::Failed {
                errno: libc::EBUSY,
                reason: "not now".into(),
            },
            Command::Counters => Reply::Snapshot(Box::<Snapshot>::default()),
            _ => Reply::Done,
        };
        let _ = request.reply.try_send(answer);
        Ok(())
    }

    fn count(&self) -> u32 {
        3
    }

    fn serving(&self, _nic: u32) -> &[u32] {
        &[0, 1, 2]
    }
}

impl Three {
    fn new(silent: bool, fails: fn(u32, &str) -> bool) -> Arc<Three> {
        Arc::new(Three {
            told: Mutex::default(),
            fails: Mutex::new(fails),
            silent,
            waiting: Mutex::default(),
        })
    }

    fn shared(self: &Arc<Three>) -> Shared {
        let mut config = config(PathBuf::from("/nonexistent/r.sock"));
        config.wiring = Wiring::new([("roce0", Some("cable")), ("roce1", Some("cable"))]);
        let mut shared = Shared::new(config, self.clone());
        shared.reply_timeout = Duration::from_millis(1);
        shared
    }

    fn told(&self) -> Vec<(u32, String)> {
        std::mem::take(&mut self.told.lock().unwrap())
    }
}

/// Lcores of which one refuses, and lcores of which one is silent; with the errno of the change.
fn failing(fails: fn(u32, &str) -> bool) -> [(Shared, Arc<Three>, i32); 2] {
    [(false, libc::EBUSY), (true, libc::EIO)].map(|(silent, errno)| {
        let three = Three::new(silent, fails);
        (three.shared(), three, errno)
    })
}

fn the_last(lcore: u32, _: &str) -> bool {
    lcore == 2
}

fn order(shared: &Shared, text: &str) -> i32 {
    let peer = Peer { pid: 1, uid: 0 };
    match query::answer(shared, peer, text.as_bytes()) {
        Ok(_) => 0,
        Err(error) => error.errno(),
    }
}

fn all(texts: &[(u32, &str)]) -> Vec<(u32, String)> {
    texts.iter().map(|(n, text)| (*n, (*text).into())).collect()
}

#[test]
fn a_link_that_one_lcore_does_not_change_is_as_it_was_on_all() {
    for (shared, three, errno) in failing(the_last) {
        let link = &shared.config.nics[0].link;
        for (down_before, to, was, wanted) in [
            (false, "false", "up true", "up false"),
            // Down by order before.
            (true, "true", "up false", "up true"),
            // As it was: there is nothing that would have to be undone, and it does no harm.
            (false, "true", "up true", "up true"),
        ] {
            link.order_down(down_before);
            let text = format!(r#"{{"query":"link","device":"roce0","up":{to}}}"#);
            assert_eq!(order(&shared, &text), errno);
            let makes = [(0, wanted), (1, wanted), (2, wanted)];
            let undoes = [(2, was), (1, was), (0, was)];
            assert_eq!(three.told(), all(&[makes, undoes].concat()));
        }
    }
}

#[test]
fn congestion_control_that_one_lcore_does_not_change_is_as_it_was_on_all_nics() {
    let the_second_nic = |lcore, change: &str| lcore == 1 && change.starts_with("nic 1");
    for (shared, three, errno) in failing(the_second_nic) {
        let gds = || {
            let nics = shared.config.nics.iter();
            let values = nics.flat_map(|nic| nic.congestion.now().values());
            let gds = values.filter(|value| value.key == "rpg_gd");
            gds.map(|gd| gd.value).collect::<Vec<_>>()
        };
        assert_eq!(gds(), ["11", "11"]);
        let set = r#"{"query":"congestion-set","settings":{"rpg_gd":10}}"#;
        assert_eq!(order(&shared, set), errno);
        let (makes, undoes) = (
            ["nic 0 gd 10", "nic 1 gd 10"],
            ["nic 0 gd 11", "nic 1 gd 11"],
        );
        let expected = [
            (0, makes[0]),
            (1, makes[0]),
            (2, makes[0]),
            (0, makes[1]),
            (1, makes[1]),
            (1, undoes[1]),
            (0, undoes[1]),
            (2, undoes[0]),
            (1, undoes[0]),
            (0, undoes[0]),
        ];
        assert_eq!(three.told(), all(&expected));
        assert_eq!(gds(), ["11", "11"]);
    }
}

#[test]
fn an_address_that_one_lcore_does_not_take_or_give_up_is_as_it_was_on_all() {
    for (shared, three, errno) in failing(the_last) {
        for (what, address, wanted) in [
            ("add", "10.77.0.9", "3 gids"),
            ("remove", "10.77.0.1", "1 gids"),
        ] {
            let text =
                format!(r#"{{"query":"address-{what}","device":"roce0","address":"{address}"}}"#);
            assert_eq!(order(&shared, &text), errno);
            let makes = [(0, wanted), (1, wanted), (2, wanted)];
            let undoes = [(2, "2 gids"), (1, "2 gids"), (0, "2 gids")];
            assert_eq!(three.told(), all(&[makes, undoes].concat()));
            assert_eq!(shared.config.nics[0].addresses.now().iter().count(), 2);
        }
    }
}

#[test]
fn a_rule_that_one_lcore_does_not_take_stands_on_none() {
    let add = r#"{"query":"impair-add","rule":{"nic":"roce0","side":"tx","drop":true}}"#;
    for (shared, three, errno) in failing(the_last) {
        assert_eq!(order(&shared, add), errno);
        let makes = [(0, "add"), (1, "add"), (2, "add")];
        let undoes = [(2, "remove"), (1, "remove"), (0, "remove")];
        assert_eq!(three.told(), all(&[makes, undoes].concat()));
    }
}

#[test]
fn a_rule_goes_from_all_lcores_that_answer() {
    let add = r#"{"query":"impair-add","rule":{"nic":"roce0","side":"tx","drop":true}}"#;
    let remove = r#"{"query":"impair-remove","rules":["1"]}"#;
    let three = Three::new(true, |_, _| false);
    let shared = three.shared();
    assert_eq!(order(&shared, add), 0);
    three.told();
    // The first one stops answering.
    *three.fails.lock().unwrap() = |lcore, _| lcore == 0;
    for _ in 0..2 {
        // The rule is still there to be removed.
        assert_eq!(order(&shared, remove), libc::EIO);
        let removes = [(0, "remove"), (1, "remove"), (2, "remove")];
        assert_eq!(three.told(), all(&removes));
    }
}

#[test]
fn a_capture_that_one_lcore_does_not_take_leaves_no_tap() {
    for (shared, three, errno) in failing(the_last) {
        let mut session = None;
        let start = Capture::Start(Start {
            nics: vec!["roce0".into()],
            switches: Vec::new(),
            inbound: true,
            outbound: true,
            snaplen: 100,
            buffer: 1,
            last: None,
            filter: Default::default(),
        });
        let error = capture::answer(&shared, &mut session, start).unwrap_err();
        assert_eq!(error.errno(), errno);
        assert!(session.is_none());
        let told = three.told();
        let taps = [(0, "tap"), (1, "tap"), (2, "tap")];
        assert_eq!(told[..3], all(&taps));
        // One that was late has it taken out behind its putting in.
        let mut out = told[3..].to_vec();
        out.sort();
        assert_eq!(out, all(&[(0, "no tap"), (1, "no tap"), (2, "no tap")]));
    }
}

#[test]
fn a_device_that_is_opened_too_late_is_closed_again() {
    let opens = |_, change: &str| change.starts_with("open");
    for (shared, three, errno) in failing(opens) {
        let silent = three.silent;
        let shared = Arc::new(shared);
        let request = open_request("roce0");
        let Err(error) = Context::open(&shared, own_peer(), &request, own_memory()) else {
            panic!("the lcore has not opened it");
        };
        assert_eq!(error.errno(), errno);
        let told = match silent {
            true => &[(0, "open 1"), (0, "close 1")][..],
            false => &[(0, "open 1")],
        };
        assert_eq!(three.told(), all(told));
    }
}
