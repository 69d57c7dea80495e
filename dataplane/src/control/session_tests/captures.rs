//! Captures: who may, what a connection gets, and that its tap goes with it.

use super::*;
use crate::capture::request::{Capture, Start, Started, Status, Stopped};
use crate::control::testing::{Answered, own_peer};

fn start(snaplen: u32, last: Option<u32>) -> Capture {
    Capture::Start(Start {
        nics: vec!["roce1".into()],
        switches: Vec::new(),
        inbound: true,
        outbound: false,
        snaplen,
        buffer: 1,
        last,
        filter: Default::default(),
    })
}

fn ask(program: &Program, request: &Capture) -> Answered {
    let text = serde_json::to_vec(request).unwrap();
    program.request(Kind::Capture as u32, &text, &[])
}

fn answer<T: serde::de::DeserializeOwned>(program: &Program, request: &Capture) -> T {
    let answer = ask(program, request);
    assert_eq!(answer.header.error, 0, "{request:?}");
    serde_json::from_slice(&answer.payload).unwrap()
}

#[test]
fn a_stranger_may_not_capture() {
    let Bench { lcore, shared, .. } = bench();
    let own = own_peer();
    let peer = crate::control::seqpacket::Peer { uid: 4711, ..own };
    let stranger = Program::start_as(&shared, peer);
    let refused = ask(&stranger, &start(100, None));
    assert_eq!(refused.header.error, libc::EPERM);
    let text = String::from_utf8(refused.payload).unwrap();
    assert!(text.contains("operators"), "{text}");
    assert!(lcore.state().taps.is_empty());
}

#[test]
fn the_tap_is_as_asked_for_and_goes_with_the_connection() {
    let Bench { lcore, shared, .. } = bench();
    let program = Program::start(&shared);
    for early in [Capture::Next, Capture::Status, Capture::Stop] {
        assert_eq!(ask(&program, &early).header.error, libc::EINVAL);
    }
    assert_eq!(ask(&program, &start(63, None)).header.error, libc::EINVAL);
    let much = start(65_535, Some(u32::MAX));
    assert_eq!(ask(&program, &much).header.error, libc::EINVAL);
    let started: Started = answer(&program, &start(65_535, None));
    assert_eq!(started.snaplen, 4200 + 18, "no frame is longer");
    assert_eq!(started.interfaces.len(), 1);
    assert_eq!(
        (
            started.interfaces[0].index,
            started.interfaces[0].name.as_str()
        ),
        (1, "roce1")
    );
    assert_eq!(
        ask(&program, &start(100, None)).header.error,
        libc::EINVAL,
        "it has one"
    );
    {
        let state = lcore.state();
        let tap = &state.taps[0];
        assert_eq!(*tap.nics, [false, true]);
        assert!(tap.inbound && !tap.outbound);
    }
    assert!(ask(&program, &Capture::Next).payload.is_empty());
    let status: Status = answer(&program, &Capture::Status);
    assert_eq!(status.failed, None);
    let stopped: Stopped = answer(&program, &Capture::Stop);
    assert_eq!(stopped.counts.len(), 1);
    assert!(lcore.state().taps.is_empty());

    let second = Program::start(&shared);
    let _: Started = answer(&second, &start(100, Some(10)));
    assert_eq!(lcore.state().taps.len(), 1);
    drop(second);
    let end = std::time::Instant::now() + GRACE;
    while !lcore.state().taps.is_empty() {
        assert!(std::time::Instant::now() < end, "the tap stays");
        std::thread::yield_now();
    }
}
