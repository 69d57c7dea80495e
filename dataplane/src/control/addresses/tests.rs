use std::path::PathBuf;

use super::*;
use crate::control::query;
use crate::control::seqpacket::Peer;
use crate::control::testing::{FakeLcore, config};
use crate::neighbour::NextHop;

/// A daemon with its device tree, and an lcore that answers at once.
struct Bench {
    shared: Shared,
    lcore: Arc<FakeLcore>,
    tree: Option<Tree>,
    dir: PathBuf,
}

impl Bench {
    fn new(name: &str, change: impl FnOnce(&mut [NicInfo])) -> Bench {
        let name = format!("roceline-addresses-{name}-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let mut config = config(dir.join("r.sock"));
        let mut nics = config.nics.to_vec();
        change(&mut nics);
        config.nics = nics.into();
        let tree = Tree::create(&config.socket, &config.nics).unwrap();
        let (lcore, _closed) = FakeLcore::new();
        Bench {
            shared: Shared::new(config, lcore.clone()),
            lcore,
            tree: Some(tree),
            dir,
        }
    }

    fn ask(&self, uid: u32, query: &str) -> Result<AddressesReply, CommandError> {
        let peer = Peer { pid: 1, uid };
        let answer = query::answer(&self.shared, peer, query.as_bytes())?;
        Ok(serde_json::from_slice(&answer).unwrap())
    }

    fn order(&self, what: &str, device: &str, address: &str) -> Result<AddressesReply, String> {
        let query =
            format!(r#"{{"query":"address-{what}","device":"{device}","address":"{address}"}}"#);
        self.ask(0, &query).map_err(|error| {
            assert!(
                [libc::EINVAL, libc::ENODEV].contains(&error.errno()),
                "{error}"
            );
            error.to_string()
        })
    }

    fn add(&self, device: &str, address: &str) -> Result<AddressesReply, String> {
        self.order("add", device, address)
    }

    /// The index at which roce0 gets an address.
    fn index_of(&self, address: &str) -> u32 {
        let added = self.add("roce0", address).unwrap();
        added.changed.unwrap().index
    }

    fn remove(&self, device: &str, address: &str) -> Result<AddressesReply, String> {
        self.order("remove", device, address)
    }

    /// What lcores were asked since the last look.
    fn asked(&self) -> Vec<String> {
        let commands = std::mem::take(&mut self.lcore.state().commands);
        commands.into_iter().map(|(_, text)| text).collect()
    }

    /// What programs read of an index of roce0: the GID, and its interface.
    fn files(&self, index: usize) -> [String; 4] {
        let views = ["all", "only/roce0"];
        let [a, b] = views.map(|view| {
            let port = self.dir.join("r.sock.d").join(view);
            let port = port.join("sys/class/infiniband/roce0/ports/1");
            ["gids", "gid_attrs/ndevs"].map(|dir| {
                let path = port.join(dir).join(index.to_string());
                std::fs::read_to_string(path).unwrap()
            })
        });
        let ([gid, ndev], [other_gid, other_ndev]) = (a, b);
        [gid, ndev, other_gid, other_ndev]
    }

    fn hop(&self, nic: usize, to: &str) -> NextHop {
        let network = self.shared.config.neighbours.network(nic).unwrap();
        network.next_hop(to.parse().unwrap())
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.tree = None;
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Index, address and origin.
fn lines(reply: &AddressesReply) -> Vec<(u32, String, &str)> {
    let all = reply.addresses.iter().map(|line| {
        let address = format!("{}/{}", line.address, line.prefix);
        (line.index, address, line.from.as_str())
    });
    all.collect()
}

const NINTH: &str = "0000:0000:0000:0000:0000:ffff:0a4d:0009\n";
const EMPTY: &str = "0000:0000:0000:0000:0000:0000:0000:0000\n";

#[test]
fn an_address_comes_at_the_first_free_index_and_goes() {
    let bench = Bench::new("life", |_| ());
    let added = bench.add("roce0", "10.77.0.9").unwrap();
    let changed = added.changed.as_ref().unwrap();
    assert_eq!(
        (changed.index, changed.prefix),
        (2, 24),
        "that of its subnet"
    );
    assert_eq!(
        lines(&added),
        [
            (0, "10.77.0.1/24".into(), "configuration"),
            (1, "fd77::1/64".into(), "configuration"),
            (2, "10.77.0.9/24".into(), "added"),
        ]
    );
    // The lcore knows it before programs can, and tells them last.
    let asked = bench.asked();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(asked[0].starts_with("SetGids { nic: 0"), "{asked:?}");
    assert!(asked[1].starts_with("GidsChanged { nic: 0"), "{asked:?}");
    assert_eq!(bench.files(2), [NINTH, "lo\n", NINTH, "lo\n"]);
    let here = NextHop::Known(bench.shared.config.nics[0].mac);
    assert_eq!(
        [bench.hop(0, "10.77.0.9"), bench.hop(1, "10.77.0.9")],
        [here; 2]
    );
    let network = bench.shared.config.neighbours.network(0).unwrap();
    assert!(network.is_own("10.77.0.9".parse().unwrap()));

    let removed = bench.remove("roce0", "10.77.0.1/24").unwrap();
    assert_eq!(removed.changed.unwrap().index, 0);
    assert_eq!(bench.files(0), [EMPTY, "", EMPTY, ""]);
    assert_eq!(
        bench.files(2),
        [NINTH, "lo\n", NINTH, "lo\n"],
        "others stay"
    );
    assert_eq!(bench.hop(1, "10.77.0.1"), NextHop::Nobody);
    let table = bench.shared.config.nics[0].addresses.now();
    assert_eq!(table.gid(0), None);
    let added = bench.add("roce0", "fd99::1/48").unwrap();
    assert_eq!(added.changed.unwrap().index, 0);
    // All NICs, and one.
    let all = bench.ask(4711, r#"{"query":"addresses"}"#).unwrap();
    assert_eq!(all.addresses.len(), 5);
    let one = bench.ask(4711, r#"{"query":"addresses","device":"roce1"}"#);
    assert_eq!(one.unwrap().addresses.len(), 2);
}

#[test]
fn an_index_that_a_queue_pair_holds_is_given_to_no_other_address() {
    let bench = Bench::new("held", |_| ());
    bench.remove("roce0", "10.77.0.1").unwrap();
    bench.lcore.state().gids_held = 0b1;
    assert_eq!(bench.index_of("10.77.0.9"), 2);
    bench.lcore.state().gids_held = 0;
    assert_eq!(bench.index_of("10.77.0.10"), 0);
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let bench = Bench::new("refused", |_| ());
    let before = bench.shared.config.nics[0].addresses.now();
    for (device, address, says) in [
        (
            "roce0",
            "10.77.0.1/24",
            "roce0 has 10.77.0.1 already: it is 10.77.0.1/24, GID 0",
        ),
        ("roce0", "10.77.0.2/24", "roce1 has 10.77.0.2, and two NICs"),
        (
            "roce0",
            "224.0.0.1/24",
            "\"224.0.0.1/24\": must be the address of one host",
        ),
        ("roce0", "0.0.0.0", "one host"),
        ("roce0", "127.0.0.1/8", "one host"),
        ("roce0", "10.77.0.9/33", "longer than the address"),
        ("roce0", "10.77.0.900", "must be an address"),
        ("roce7", "10.77.0.9", "\"roce7\""),
    ] {
        let problem = bench.add(device, address).unwrap_err();
        assert!(problem.contains(says), "{address}: {problem}");
    }
    for (address, says) in [
        ("10.77.0.9", "roce0 does not have 10.77.0.9"),
        ("10.77.0.1/16", "which is 10.77.0.1/24"),
        ("x", "must be an address"),
    ] {
        let problem = bench.remove("roce0", address).unwrap_err();
        assert!(problem.contains(says), "{address}: {problem}");
    }
    bench.remove("roce0", "fd77::1").unwrap();
    let problem = bench.remove("roce0", "10.77.0.1").unwrap_err();
    assert!(problem.contains("the last address of roce0"), "{problem}");
    bench.add("roce0", "fd77::1").unwrap();
    assert_eq!(
        bench.shared.config.nics[0].addresses.now().get(0),
        before.get(0)
    );
    let order = r#"{"query":"address-remove","device":"roce0","address":"10.77.0.1"}"#;
    assert_eq!(bench.ask(4711, order).unwrap_err().errno(), libc::EPERM);
}

#[test]
fn a_full_table_says_so() {
    let bench = Bench::new("full", |_| ());
    for last in 0..14 {
        bench.add("roce0", &format!("10.77.1.{last}/24")).unwrap();
    }
    let problem = bench.add("roce0", "10.77.2.1/24").unwrap_err();
    assert!(
        problem.contains("full: it has 16 entries. Remove"),
        "{problem}"
    );
    bench.remove("roce0", "10.77.1.3").unwrap();
    bench.lcore.state().gids_held = 1 << 5;
    let problem = bench.add("roce0", "10.77.2.1/24").unwrap_err();
    assert!(problem.contains("still hold"), "{problem}");
    bench.lcore.state().gids_held = 0;
    assert_eq!(bench.index_of("10.77.2.1/24"), 5);
}

#[test]
fn what_others_follow_from_stays() {
    let bench = Bench::new("stays", |nics| {
        let own = Address {
            ip: link_local(nics[0].mac).into(),
            prefix: 64,
            origin: Origin::Mac,
        };
        let table = nics[0].addresses.now().with(2, Some(own));
        nics[0].addresses.set(table);
        nics[0].lid = 1;
    });
    let own = link_local(bench.shared.config.nics[0].mac).to_string();
    let problem = bench.remove("roce0", &own).unwrap_err();
    assert!(
        problem.contains("follows from the MAC address of roce0"),
        "{problem}"
    );
    let problem = bench.remove("roce0", "10.77.0.1").unwrap_err();
    assert!(
        problem.contains("the LID of roce0 follows from 10.77.0.1"),
        "{problem}"
    );
    bench.add("roce0", "10.77.0.9").unwrap();
    bench.remove("roce0", "10.77.0.9").unwrap();
}

#[test]
fn what_programs_could_not_read_is_taken_back() {
    let mut bench = Bench::new("unreadable", |_| ());
    bench.tree = None;
    let peer = Peer { pid: 1, uid: 0 };
    let add = br#"{"query":"address-add","device":"roce0","address":"10.77.0.9"}"#;
    let error = query::answer(&bench.shared, peer, add).unwrap_err();
    assert_eq!(error.errno(), libc::ENOENT, "{error}");
    assert!(error.to_string().contains("nothing is changed"), "{error}");
    let asked = bench.asked();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(
        asked.iter().all(|text| text.starts_with("SetGids")),
        "{asked:?}"
    );
    assert_ne!(asked[0], asked[1]);
    assert_eq!(bench.shared.config.nics[0].addresses.now().len(), 2);
    assert_eq!(bench.hop(1, "10.77.0.9"), NextHop::Nobody);
}
