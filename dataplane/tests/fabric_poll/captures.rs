//! What captures at ports of switches hear, and when.

use std::sync::Arc;

use roceline::capture::chunks::{Drainer, stream};
use roceline::capture::record::decode;
use roceline::capture::request::Counts;
use roceline::lcore::tap::{Clock, Store, Tap, TapId};
use roceline::port::Mempool;
use roceline_engine::Nanos;
use roceline_engine::wire::PauseFrame;

use super::ALLOCATIONS;
use super::world::{MTU, World, drain, world};

/// A frame that a capture heard at a port of a switch.
#[derive(Debug)]
struct Heard {
    port: u16,
    outbound: bool,
    time: u64,
    data: Vec<u8>,
}

fn heard(world: &mut World, drainer: &mut Drainer) -> Vec<Heard> {
    world.taps.settle();
    let mut bytes = Vec::new();
    while drainer.read(&mut bytes) {}
    let mut rest = bytes.as_slice();
    let records = std::iter::from_fn(|| decode(&mut rest));
    let heard = records.map(|record| Heard {
        // Behind the three NICs.
        port: record.nic - 3,
        outbound: record.outbound,
        time: record.stamp,
        data: record.data.to_vec(),
    });
    heard.collect()
}

/// Two senders to a receiver whose port is slow, over two switches: marks, pauses from switch to switch and to NICs, at the times that the
/// rates of links give them.
pub fn captures_hear_marks_and_pauses_at_their_times(pool: &Arc<Mempool>) {
    let fabric = "[fabric]\nrate = \"1Gb/s\"\nkmin = \"20KiB\"\nkmax = \"40KiB\"\nbuffer = \"256KiB\"\n\
                  [[fabric.switch]]\nname = \"a\"\nport = [{ to = \"roce0\", rate = \"500Mb/s\" }]\n\
                  [[fabric.switch]]\nname = \"b\"\nuplinks = \"a\"\n";
    let mut world = world(pool, &["a", "b", "b"], fabric);
    // a to NIC 0 and to b, b to NICs 1 and 2 and to a.
    let [a_nic, a_b, b_nic, b_a] = [0, 1, 2, 4];
    let (filler, mut drainer) = stream(16 << 20);
    let tap = Tap {
        id: TapId(1),
        nics: (0..8).map(|n| n >= 3).collect(),
        inbound: true,
        outbound: true,
        snaplen: 64,
        filter: None,
        store: Store::Stream(filler),
        counts: vec![Counts::default(); 8].into(),
        clock: Clock::start(),
        state: Arc::default(),
    };
    world.taps.add(Box::new(tap)).unwrap();
    world.fabric.listen(&world.taps);
    assert_eq!(world.send(1, 0, MTU, 0, 10), 10);
    world.pass(Nanos(5_000_000));
    let first = heard(&mut world, &mut drainer);
    let frame_time = 8 * (MTU as u64 + 24);
    for (port, outbound, gap) in [
        (b_nic, false, frame_time),
        (b_a, true, frame_time),
        (a_b, false, frame_time),
        (a_nic, true, 2 * frame_time),
    ] {
        let there = first
            .iter()
            .filter(|h| (h.port, h.outbound) == (port, outbound));
        let times: Vec<u64> = there.map(|h| h.time).collect();
        assert_eq!(times.len(), 10, "{first:?}");
        for pair in times.windows(2) {
            // Picoseconds are left out.
            assert!((pair[1] - pair[0]).abs_diff(gap) <= 1, "{port}: {times:?}");
        }
    }

    let mut paused = [false; 3];
    let mut all = first;
    for round in 0..3_000 {
        let allocated = ALLOCATIONS.get();
        for from in [1, 2] {
            if round < 400 && !paused[from] {
                world.send(from, 0, MTU, 0, 16);
            }
        }
        world.pass(Nanos(100_000));
        for (nic, paused) in paused.iter_mut().enumerate() {
            while let Some(mbuf) = world.receive(nic) {
                match PauseFrame::parse(mbuf.data(), &[2; 6]) {
                    Some(PauseFrame::Priority { quanta, .. }) => *paused = quanta[3] > 0,
                    Some(pause) => panic!("{pause:?}"),
                    None => {}
                }
            }
        }
        assert_eq!(ALLOCATIONS.get(), allocated, "captures allocate nothing");
        all.extend(heard(&mut world, &mut drainer));
    }
    let counts = world.taps.remove(TapId(1)).unwrap().counts;
    assert_eq!(counts.iter().map(|counts| counts.lost).sum::<u64>(), 0);
    let is_pause = |h: &&Heard| h.data[12..14] == [0x88, 0x08];
    let at = |port, outbound| {
        all.iter()
            .filter(move |h| (h.port, h.outbound) == (port, outbound))
    };
    let queue = world.queue("roce0");
    assert_eq!(at(a_nic, true).count() as u64, queue.tx_frames);
    // b marks first. a may mark some of the same, which are seen once.
    let marked = |port| at(port, true).filter(|h| h.data[15] & 3 == 3).count() as u64;
    let by_b = world.queue("a").ce_marked;
    assert!(by_b > 0 && marked(b_a) == by_b, "{} {by_b}", marked(b_a));
    let seen = marked(a_nic);
    assert!(
        queue.ce_marked > 0 && (by_b..=by_b + queue.ce_marked).contains(&seen),
        "{seen} {by_b} {queue:?}"
    );
    // What a tells b is at both ends, from a's port.
    let (own, other) = (world.queue("b"), world.queue("a"));
    assert!(own.pause_tx.frames > 0, "{own:?}");
    for (port, outbound, count) in [
        (a_b, true, own.pause_tx.frames),
        (b_a, false, other.pause_rx.frames),
        (b_nic, true, world.queue("roce1").pause_tx.frames),
    ] {
        let pauses: Vec<&Heard> = at(port, outbound).filter(is_pause).collect();
        assert_eq!(pauses.len() as u64, count, "{port}");
        if port != b_nic {
            assert!(
                pauses
                    .iter()
                    .all(|h| h.data[6..12] == [2, 0x52, 0x4c, 0xff, 0, 1])
            );
        }
    }
    assert!(all.windows(2).all(|pair| pair[0].time <= pair[1].time));
    drain(world);
}
