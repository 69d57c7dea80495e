use super::*;
use crate::control::client::{Client, ClientError};
use crate::control::query::{
    DevicesReply, LcoresReply, MrsReply, PortsReply, QpsReply, Query, ReadyReply, StatReply,
    VersionReply,
};
use crate::control::testing::{FakeLcore, config};
use crate::lcore::message::{LcoreSnapshot, MrSnapshot, NicSnapshot, QpSnapshot, Reply, Snapshot};
use roceline_abi::PROTOCOL_VERSION;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// A folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("roceline-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
    fn socket(&self) -> PathBuf {
        self.0.join("roceline.sock")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn serve(folder: &Folder) -> (Server, Arc<FakeLcore>) {
    let (lcore, _closed) = FakeLcore::new();
    let listener = Server::bind(config(folder.socket())).unwrap();
    (listener.start(lcore.clone()).unwrap(), lcore)
}

#[test]
fn the_command_lines_questions_are_answered() {
    let folder = Folder::new("questions");
    let (server, lcore) = serve(&folder);
    let mut nic = NicSnapshot {
        name: "roce0".into(),
        contexts: 2,
        mrs: 1,
        qps: 2,
        ..Default::default()
    };
    nic.counters.rdma_tx_bytes = 4000;
    nic.counters.rdma_rx_packets = 7;
    nic.counters.out_of_buffer = 3;
    nic.counters.rx_malformed = 2;
    nic.port = vec![("tx_packets", 9)];
    let mut qp = QpSnapshot {
        device: "roce0".into(),
        transport: "UC",
        qpn: 17,
        pid: 4,
        ..Default::default()
    };
    qp.counters.packet_seq_err = 5;
    let mr = MrSnapshot {
        device: "roce0".into(),
        lkey: 0x700,
        reach: "helper",
        ..Default::default()
    };
    let first = QpSnapshot {
        qpn: 5,
        ..qp.clone()
    };
    lcore.state().snapshot = Snapshot {
        nics: vec![nic],
        qps: vec![qp, first],
        mrs: vec![mr],
        lcore: LcoreSnapshot {
            cpu: Some(1),
            polls: 10,
            empty_polls: 4,
            sleeps: 2,
            lost_us: 3,
        },
        more: None,
    };
    let client = Client::connect(server.socket()).unwrap();

    let ready: ReadyReply = client.ask(&Query::Ready).unwrap();
    assert_eq!(ready.devices, ["roce0", "roce1"]);
    let version: VersionReply = client.ask(&Query::Version).unwrap();
    assert_eq!(
        (version.version.as_str(), version.protocol),
        (env!("CARGO_PKG_VERSION"), u32::from(PROTOCOL_VERSION))
    );
    let DevicesReply { devices } = client.ask(&Query::Devices).unwrap();
    assert_eq!(
        (devices[0].uverbs.as_str(), devices[0].mac.as_str()),
        ("uverbs0", "02:00:00:00:00:01")
    );
    assert_eq!(
        (devices[0].contexts, devices[0].mrs, devices[0].qps),
        (2, 1, 2)
    );
    assert_eq!((devices[1].contexts, devices[1].active_mtu), (0, 1024));
    assert_eq!(devices[0].addrs, ["10.77.0.1/24", "fd77::1/64"]);
    assert_eq!(
        (
            devices[0].gids[1].index,
            devices[0].gids[1].address.as_str()
        ),
        (1, "fd77::1")
    );
    let StatReply { devices, .. } = client.ask(&Query::Stat).unwrap();
    let roce0 = &devices[0];
    assert_eq!(
        (
            roce0.counters["port_xmit_data"],
            roce0.counters["port_rcv_packets"]
        ),
        (1000, 7)
    );
    assert_eq!(
        (roce0.hw_counters["out_of_buffer"], roce0.port["tx_packets"]),
        (3, 9)
    );
    assert_eq!(roce0.counters["port_rcv_errors"], 2);
    assert_eq!(roce0.hw_counters["rdma_tx_bytes"], 4000);
    assert_eq!(roce0.hw_counters["np_cnp_sent"], 0);
    assert_eq!(devices[1].hw_counters["out_of_buffer"], 0);
    let QpsReply { qps } = client.ask(&Query::Qps).unwrap();
    assert_eq!(qps.iter().map(|qp| qp.qpn).collect::<Vec<_>>(), [5, 17]);
    assert!(qps.iter().all(|qp| qp.transport == "UC"));
    let counted = [("packet_seq_err".to_string(), 5)];
    assert!(
        qps[1]
            .counters
            .iter()
            .map(|(n, v)| (n.clone(), *v))
            .eq(counted)
    );
    let MrsReply { mrs } = client.ask(&Query::Mrs).unwrap();
    assert_eq!((mrs[0].lkey, mrs[0].reach.as_str()), (0x700, "helper"));
    let PortsReply { ports } = client.ask(&Query::Ports).unwrap();
    assert_eq!((ports[0].mtu, ports[0].counters["tx_packets"]), (4200, 9));
    let LcoresReply { lcores } = client.ask(&Query::Lcores).unwrap();
    assert_eq!(
        (lcores.len(), lcores[0].cpu, lcores[0].sleeps),
        (1, Some(1), 2)
    );
    let status = client.status().unwrap();
    assert_eq!((status.devices.len(), status.lcores.len()), (2, 1));
    let value = client.query(&Query::Stat).unwrap();
    assert_eq!(value["devices"][0]["hw_counters"]["out_of_buffer"], 3);

    lcore.state().next = Some(Reply::Failed {
        errno: libc::EAGAIN,
        reason: "not now".into(),
    });
    let error = client.query(&Query::Stat).unwrap_err();
    assert!(
        matches!(&error, ClientError::Refused { errno: libc::EAGAIN, text } if text == "not now")
    );
}

#[test]
fn a_long_answer_comes_in_several_packets() {
    let folder = Folder::new("long");
    let (server, lcore) = serve(&folder);
    let qp = QpSnapshot {
        device: "roce0".into(),
        state: "RTS".into(),
        ..Default::default()
    };
    let many = (0..5000).map(|qpn| QpSnapshot { qpn, ..qp.clone() });
    lcore.state().snapshot.qps = many.collect();
    let client = Client::connect(server.socket()).unwrap();
    let QpsReply { qps } = client.ask(&Query::Qps).unwrap();
    assert_eq!(qps.len(), 5000);
    assert!(qps.iter().map(|qp| qp.qpn).eq(0..5000));
}

#[test]
fn the_socket_has_its_mode_and_goes_when_the_server_stops() {
    let folder = Folder::new("mode");
    let mut config = config(folder.socket());
    config.socket_mode = 0o640;
    let (lcore, _closed) = FakeLcore::new();
    let server = Server::bind(config).unwrap().start(lcore).unwrap();
    let mode = std::fs::metadata(folder.socket())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o640);
    let client = Client::connect(&folder.socket()).unwrap();
    client.query(&Query::Version).unwrap();
    server.stop();
    assert!(!folder.socket().exists());
    assert!(matches!(
        client.query(&Query::Version),
        Err(ClientError::Ended)
    ));
    let error = Client::connect(&folder.socket()).unwrap_err();
    assert!(matches!(error, ClientError::NoDaemon { .. }));
}

#[test]
fn a_socket_is_replaced_only_if_nobody_answers() {
    let folder = Folder::new("stale");
    let (server, _lcore) = serve(&folder);
    let error = Server::bind(config(folder.socket())).err().unwrap();
    assert!(matches!(error, ControlError::InUse(_)));
    assert!(folder.socket().exists());
    // The daemon dies without removing its file.
    let address = seqpacket::address(&folder.socket()).unwrap();
    drop(server);
    let dead = seqpacket::socket().unwrap();
    seqpacket::listen(dead.as_fd(), &address).unwrap();
    drop(dead);
    assert!(folder.socket().exists());
    let (server, _lcore) = serve(&folder);
    Client::connect(server.socket())
        .unwrap()
        .query(&Query::Ready)
        .unwrap();
    drop(server);

    std::fs::write(folder.socket(), "precious").unwrap();
    let error = Server::bind(config(folder.socket())).err().unwrap();
    assert!(matches!(error, ControlError::NotASocket(_)));
    assert_eq!(std::fs::read(folder.socket()).unwrap(), b"precious");
    let long = config(PathBuf::from("x".repeat(200)));
    assert!(matches!(
        Server::bind(long).err().unwrap(),
        ControlError::PathTooLong(_)
    ));
}

#[test]
fn a_successors_socket_is_left_alone() {
    let folder = Folder::new("successor");
    let (first, _lcore) = serve(&folder);
    std::fs::remove_file(folder.socket()).unwrap();
    let (second, _lcore) = serve(&folder);
    drop(first);
    Client::connect(second.socket())
        .unwrap()
        .query(&Query::Ready)
        .unwrap();
}

#[test]
fn only_allowed_users_may_open() {
    let (lcore, _closed) = FakeLcore::new();
    let mut config = config(PathBuf::from("unused"));
    assert!(Shared::new(config.clone(), lcore.clone()).may_open(4711));
    config.allowed_users = Some(vec![4711]);
    let shared = Shared::new(config, lcore);
    assert!(shared.may_open(4711) && shared.may_open(0));
    assert!(!shared.may_open(4712));
}

#[test]
fn only_operators_may_change_what_the_daemon_does() {
    let (lcore, _closed) = FakeLcore::new();
    let mut config = config(PathBuf::from("unused"));
    // SAFETY: a plain system call that cannot fail.
    let own = unsafe { libc::geteuid() };
    let shared = Shared::new(config.clone(), lcore.clone());
    assert!(shared.may_operate(0) && shared.may_operate(own));
    assert!(!shared.may_operate(4711), "who may open may not operate");
    config.operators = vec![4711];
    let shared = Shared::new(config, lcore);
    assert!(shared.may_operate(4711) && !shared.may_operate(4712));
}

#[test]
fn stopping_closes_the_contexts_of_programs_that_stay() {
    use crate::control::testing::{Program, own_peer};
    let (lcore, closed) = FakeLcore::new();
    let shared = Arc::new(Shared::new(config(PathBuf::from("unused")), lcore.clone()));
    let program = Program::with_context(&shared, "roce0");
    assert!(shared.close_all(Duration::from_secs(20)));
    assert!(lcore.state().contexts.is_empty());
    assert!(closed.try_recv().is_ok());
    assert!(program.receive().is_none());
    let (_, socket) = seqpacket::both_ends();
    assert!(
        start_session(&shared, socket, own_peer()).is_err(),
        "no session after that"
    );
}
