use std::net::IpAddr;

use roceline_engine::verbs::Mtu;

use super::content::cpu_mask;
use super::*;
use crate::addresses::{Address, Addresses, GID_TABLE_LEN, Table};
use crate::control::counters::NicCounters;
use crate::lcore::message::NicSnapshot;
use crate::nic::LinkState;

fn nic(index: u32) -> NicInfo {
    let addr: IpAddr = format!("10.77.0.{}", index + 1)
        .parse()
        .expect("an address");
    NicInfo {
        index,
        uverbs: index,
        name: format!("roce{index}"),
        mac: [2, 0, 0, 0, 0, index as u8],
        addresses: Addresses::new(Table::from_iter([Address::configured(addr, 24)])),
        port_mtu: 4200,
        active_mtu: Mtu::M4096,
        memory: roceline_abi::control::MemoryPolicy::Auto,
        node_guid: [2, 0, 0, 0xff, 0xfe, 0, 0, index as u8],
        lid: 0,
        link: LinkState::default(),
        congestion: Default::default(),
    }
}

fn inode(path: &Path) -> u64 {
    let meta = fs::symlink_metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    meta.ino()
}

/// The files below `dir`, and links, without the directory.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).expect("a directory") {
        let entry = entry.expect("an entry");
        match entry.file_type().expect("a type").is_dir() {
            true => files.extend(files_below(&entry.path())),
            false => files.push(entry.path()),
        }
    }
    files
}

/// A fresh directory that goes with the value.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("roceline-tree-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("a scratch directory");
        Scratch(dir)
    }
    fn socket(&self) -> PathBuf {
        self.0.join("r.sock")
    }
    fn read(&self, path: &str) -> String {
        let path = self.0.join("r.sock.d").join(path);
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_port_without_a_link_is_down() {
    let s = Scratch::new("link");
    let port = |view: &str| format!("{view}/sys/class/infiniband/roce0/ports/1");
    let both = |s: &Scratch, state: &str, phys: &str| {
        for view in ["all", "only/roce0"] {
            assert_eq!(s.read(&format!("{}/state", port(view))), state);
            assert_eq!(s.read(&format!("{}/phys_state", port(view))), phys);
        }
    };
    let nic = nic(0);
    nic.link.set(false);
    let tree = Tree::create(&s.socket(), &[nic]).expect("a tree");
    both(&s, "1: DOWN\n", "2: Polling\n");
    tree.update_link("roce0", true).expect("files");
    both(&s, "4: ACTIVE\n", "5: LinkUp\n");
    tree.update_link("roce0", false).expect("files");
    both(&s, "1: DOWN\n", "2: Polling\n");
}

#[test]
fn files_that_say_so_already_are_left_alone() {
    let s = Scratch::new("left");
    let tree = Tree::create(&s.socket(), &[nic(0)]).expect("a tree");
    let inodes = || {
        ["all", "only/roce0"].map(|view| {
            let port = port_dir(&tree.root().join(view), "roce0");
            ["state", "phys_state"].map(|name| inode(&port.join(name)))
        })
    };
    let before = inodes();
    assert!(!tree.update_link("roce0", true).expect("files"));
    assert_eq!(inodes(), before);
    assert!(tree.update_link("roce0", false).expect("files"));
    assert_ne!(inodes(), before);
}

#[test]
fn each_file_of_a_nic_is_written_once() {
    let s = Scratch::new("once");
    let tree = Tree::create(&s.socket(), &[nic(0), nic(1)]).expect("a tree");
    for name in ["roce0", "roce1"] {
        let view = tree.root().join("only").join(name);
        let files = files_below(&view);
        assert!(files.len() > 100, "{}", files.len());
        for file in files {
            let below = file.strip_prefix(&view).expect("below the view");
            // That of the view itself, with or without devices.
            if below == Path::new("sys/class/infiniband_verbs/abi_version") {
                continue;
            }
            let same = tree.root().join("all").join(below);
            assert_eq!(inode(&file), inode(&same), "{}", file.display());
        }
    }
}

#[test]
fn a_draft_is_seen_when_it_is_published_and_with_the_links_of_then() {
    let s = Scratch::new("draft");
    let nics = [nic(0)];
    nics[0].link.set(false);
    let draft =
        |socket: &Path| Draft::write(Machine::without_devices(), socket, &nics).expect("a draft");
    let entries = || fs::read_dir(&s.0).expect("a directory").count();
    let dropped = draft(&s.socket());
    assert!(!Tree::path(&s.socket()).exists());
    assert_eq!(entries(), 1);
    drop(dropped);
    assert_eq!(entries(), 0, "a draft that nobody wants is removed");
    let draft = draft(&s.socket());
    nics[0].link.set(true);
    let _tree = draft.publish(&nics).expect("a tree");
    assert_eq!(entries(), 1);
    for view in ["all", "only/roce0"] {
        let state = s.read(&format!("{view}/sys/class/infiniband/roce0/ports/1/state"));
        assert_eq!(state, "4: ACTIVE\n");
    }
}

#[test]
fn the_draft_of_a_dead_process_is_discarded() {
    let s = Scratch::new("discard");
    let draft = Draft::write(Machine::without_devices(), &s.socket(), &[nic(0)]).expect("a draft");
    Tree::discard_drafts(&s.socket(), std::process::id() + 1);
    assert!(draft.path.exists(), "another's");
    Tree::discard_drafts(&s.socket(), std::process::id());
    assert!(!draft.path.exists());
}

#[test]
fn the_drafts_of_those_who_died_with_their_supervisor_are_discarded() {
    let s = Scratch::new("stale");
    // Linux gives no such number to a process (`PID_MAX_LIMIT`).
    let dead = (1 << 22) + 1;
    let make = |path: PathBuf, entry: &str| {
        fs::create_dir_all(path.join(entry)).expect("a directory");
        path
    };
    let stale = [draft_of, old_of].map(|path| make(path(&s.socket(), dead), "all/sys"));
    let left = [
        make(draft_of(&s.socket(), std::process::id()), "all/sys"),
        make(draft_of(&s.socket(), dead + 1), "something of somebody's"),
        make(draft_of(&s.0.join("other.sock"), dead), "all/sys"),
        make(suffixed(&s.socket(), ".d.new-copy"), "all/sys"),
        make(Tree::path(&s.socket()), "all/sys"),
    ];
    Tree::discard_stale_drafts(&s.socket());
    for path in stale {
        assert!(!path.exists(), "{}", path.display());
    }
    for path in left {
        assert!(path.exists(), "{}", path.display());
    }
}

#[test]
fn files_read_as_the_kernel_prints_them() {
    let s = Scratch::new("format");
    let _tree = Tree::create(&s.socket(), &[nic(0), nic(1)]).expect("a tree");
    let dev = "all/sys/class/infiniband/roce1";
    assert_eq!(s.read("all/sys/class/infiniband_verbs/abi_version"), "6\n");
    assert_eq!(
        s.read("all/sys/class/infiniband_verbs/uverbs1/ibdev"),
        "roce1\n"
    );
    assert_eq!(
        s.read("all/sys/class/infiniband_verbs/uverbs1/dev"),
        "231:193\n"
    );
    assert_eq!(s.read(&format!("{dev}/node_type")), "1: CA\n");
    assert_eq!(s.read(&format!("{dev}/node_guid")), "0200:00ff:fe00:0001\n");
    assert_eq!(
        s.read(&format!("{dev}/device/modalias")),
        "rdma_device:Nrxe\n"
    );
    let port = format!("{dev}/ports/1");
    assert_eq!(s.read(&format!("{port}/state")), "4: ACTIVE\n");
    assert_eq!(s.read(&format!("{port}/cap_mask")), "0x00000000\n");
    assert_eq!(s.read(&format!("{port}/pkeys/0")), "0xffff\n");
    let zero = "0000:0000:0000:0000:0000:0000:0000:0000\n";
    assert_eq!(
        s.read(&format!("{port}/gids/0")),
        "0000:0000:0000:0000:0000:ffff:0a4d:0002\n"
    );
    for i in 1..GID_TABLE_LEN {
        assert_eq!(s.read(&format!("{port}/gids/{i}")), zero);
        assert_eq!(s.read(&format!("{port}/gid_attrs/types/{i}")), "RoCE v2\n");
    }
    assert_eq!(s.read(&format!("{port}/hw_counters/out_of_buffer")), "0\n");
    assert_eq!(s.read(&format!("{port}/counters/port_xmit_data")), "0\n");
    assert_eq!(s.read("all/dev/infiniband/uverbs0"), "");
}

#[test]
fn a_limited_view_has_one_device() {
    let s = Scratch::new("view");
    let tree = Tree::create(&s.socket(), &[nic(0), nic(1)]).expect("a tree");
    let names = |dir: &str| {
        let mut v: Vec<_> = fs::read_dir(tree.root().join(dir))
            .expect("a directory")
            .map(|e| {
                e.expect("an entry")
                    .file_name()
                    .into_string()
                    .expect("text")
            })
            .collect();
        v.sort();
        v
    };
    assert_eq!(names("all/sys/class/infiniband"), ["roce0", "roce1"]);
    assert_eq!(names("only/roce1/sys/class/infiniband"), ["roce1"]);
    assert_eq!(names("only/roce1/dev/infiniband"), ["uverbs1"]);
    assert_eq!(
        names("only/roce1/sys/class/infiniband_verbs"),
        ["abi_version", "uverbs1"]
    );
}

#[test]
fn a_stale_tree_is_replaced_and_a_successors_tree_is_kept() {
    let s = Scratch::new("stale");
    let first = Tree::create(&s.socket(), &[nic(0)]).expect("a tree");
    let second = Tree::create(&s.socket(), &[nic(1)]).expect("a second tree");
    drop(first);
    assert_eq!(
        s.read("all/sys/class/infiniband_verbs/uverbs1/ibdev"),
        "roce1\n"
    );
    assert!(
        !second
            .root()
            .join("all/sys/class/infiniband/roce0")
            .exists()
    );
    drop(second);
    let left: Vec<_> = fs::read_dir(&s.0).expect("the directory").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn what_is_no_tree_is_neither_replaced_nor_removed() {
    for (name, file) in [("foreign", "r.sock.d/mine"), ("like", "r.sock.d/all/mine")] {
        let s = Scratch::new(name);
        let mine = s.0.join(file);
        fs::create_dir_all(mine.parent().expect("a parent")).expect("a directory");
        fs::write(&mine, "mine").expect("a file");
        let error = Tree::create(&s.socket(), &[nic(0)]).expect_err("refused");
        assert!(
            error.to_string().contains(&mine.display().to_string()),
            "{error}"
        );
        Tree::remove(&s.socket());
        assert_eq!(fs::read_to_string(&mine).expect("still there"), "mine");
        assert_eq!(fs::read_dir(&s.0).expect("a listing").count(), 1);
    }
    // Nor what a link leads to.
    let s = Scratch::new("link-to");
    fs::create_dir(s.0.join("other")).expect("a directory");
    std::os::unix::fs::symlink("other", Tree::path(&s.socket())).expect("a link");
    Tree::create(&s.socket(), &[nic(0)]).expect_err("refused");
    // A tree that was removed in part is replaced, and goes.
    let s = Scratch::new("part");
    fs::create_dir_all(Tree::path(&s.socket()).join("only/roce7")).expect("a directory");
    drop(Tree::create(&s.socket(), &[nic(0)]).expect("a tree"));
    assert!(!Tree::path(&s.socket()).exists());
}

#[test]
fn too_many_addresses_are_refused_by_name() {
    let s = Scratch::new("many");
    let mut n = nic(0);
    let one = n.addresses.now().get(0).copied();
    let many = std::iter::repeat_n(one, GID_TABLE_LEN + 1).flatten();
    n.addresses = Addresses::new(many.collect());
    let error = Tree::create(&s.socket(), &[n])
        .expect_err("17 GIDs")
        .to_string();
    assert!(
        error.contains("roce0 has 17 GIDs but its table holds 16"),
        "{error}"
    );
    assert!(!s.0.join("r.sock.d").exists());
}

#[test]
fn counters_reach_both_views() {
    let s = Scratch::new("counters");
    let tree = Tree::create(&s.socket(), &[nic(0)]).expect("a tree");
    let mut part = NicSnapshot::default();
    part.counters.rdma_tx_bytes = 4096;
    part.counters.out_of_buffer = 17;
    let mut counters = NicCounters::default();
    let before = counter_files(&counters);
    counters.add(&part);
    tree.update("roce0", &before, &counter_files(&counters))
        .expect("an update");
    for view in ["all", "only/roce0"] {
        let port = format!("{view}/sys/class/infiniband/roce0/ports/1");
        assert_eq!(s.read(&format!("{port}/counters/port_xmit_data")), "1024\n");
        assert_eq!(s.read(&format!("{port}/hw_counters/out_of_buffer")), "17\n");
    }
}

#[test]
fn lifespan_is_what_somebody_wrote_within_limits() {
    let s = Scratch::new("lifespan");
    let tree = Tree::create(&s.socket(), &[nic(0)]).expect("a tree");
    let path = "only/roce0/sys/class/infiniband/roce0/ports/1/hw_counters/lifespan";
    let ms = Duration::from_millis;
    assert_eq!(s.read(path), "100\n");
    let mut present = Tree::LIFESPAN;
    for (text, lifespan, left) in [
        ("50\n", 50, "50\n"),
        ("", 50, ""),
        ("250", 250, "250"),
        ("0", 10, "10\n"),
        ("99999999", 60_000, "60000\n"),
        ("soon", 60_000, "60000\n"),
    ] {
        fs::write(s.0.join("r.sock.d").join(path), text).expect("it is a file");
        present = tree.lifespan("roce0", present).expect("it can be read");
        assert_eq!(
            (present, s.read(path)),
            (ms(lifespan), left.into()),
            "{text:?}"
        );
    }
}

#[test]
fn cpu_masks_are_in_words_of_32() {
    assert_eq!(cpu_mask(2), "3");
    assert_eq!(cpu_mask(32), "ffffffff");
    assert_eq!(cpu_mask(36), "f,ffffffff");
}
