//! Half round trips between two programs on one CPU, whose NICs a polling thread on another CPU serves as in a daemon, with what it does
//! when there is no work.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use roceline_abi::queue::Sge;
use roceline_engine::EngineConfig;
use roceline_engine::verbs::WrOpcode;

use super::measure::Place;
use super::space::Choice;
use super::workload::Ping;
use crate::bench::machine::pin;
use crate::bench::memory::Buffer;
use crate::bench::pair::{self, Side};
use crate::bench::producer::{ACK_TIMEOUT, SIGNALED};
use crate::bench::stats::median;
use crate::config::{Config, Idle, Preset};
use crate::lcore::probe::{NoProbe, tsc};
use crate::lcore::{IdlePolicy, Lcore, LcoreConfig};
use crate::memory::helper::LcoreWake;
use crate::port::{FabricLink, FabricLinkConfig, Mempool, Port};

/// Round trips of a measurement.
const TRIPS: usize = 1200;
/// As many at least, however long they take.
const LEAST: usize = 24;
/// Where more take longer than this, as on a machine with other things to do, it ends.
const LONGEST: Duration = Duration::from_millis(20);
/// The first one in so many does not count.
const WARM_UP: usize = 6;
/// Of the sends one in so many is signalled.
const SIGNAL_EVERY: u64 = 16;
/// Cycles after which an answer is taken to be lost: some ten seconds.
const LOST: u64 = 30_000_000_000;
/// log2 of the slots of a queue.
const DEPTH: u32 = 8;
/// `IBV_WC_RECV`, the bit of all completions of receives.
const RECEIVED: u32 = 1 << 7;

/// A program with its memory: it receives at the beginning, and sends from behind that.
struct Half {
    side: Side,
    buffer: Buffer,
    key: u32,
    len: u32,
    /// Messages.
    sent: u64,
    /// The word at the end of what it received last.
    seen: u64,
}

/// Both programs, and what wakes the polling thread.
type Built = ([Half; 2], Arc<LcoreWake>);

/// Nanoseconds of half a round trip, median.
///
/// # Errors
/// When it cannot be set up, or an answer does not come.
pub fn half_round_trip(
    choice: &Choice,
    ping: Ping,
    place: Place,
    pool: &Arc<Mempool>,
    tsc_hz: f64,
) -> io::Result<f64> {
    let (tell, told) = channel();
    let stop = Arc::new(AtomicBool::new(false));
    let (stopped, pool, choice) = (Arc::clone(&stop), Arc::clone(pool), *choice);
    let lcore = thread::Builder::new().name("lcore".into()).spawn(move || {
        let registered = pool.eal().register_thread().map_err(io::Error::other);
        let built = registered.and_then(|thread| Ok((build(&choice, ping, place, &pool)?, thread)));
        match built {
            Ok(((mut lcore, halves, wake), _thread)) => {
                if tell.send(Ok((halves, wake))).is_ok() {
                    lcore.run(&stopped);
                }
            }
            // Whoever waits for it is there.
            Err(error) => drop(tell.send(Err(error))),
        }
    })?;
    let built: io::Result<Built> = told
        .recv()
        .map_err(io::Error::other)
        .and_then(|built| built);
    let measured = built.and_then(|(mut halves, wake)| {
        if let Some(cpu) = place.programs {
            pin(cpu);
        }
        let trip = trips(&mut halves, ping, &wake, tsc_hz);
        stop.store(true, Ordering::Relaxed);
        wake.ring();
        trip
    });
    match lcore.join() {
        Ok(()) => measured,
        Err(_) => Err(io::Error::other("the polling thread panicked")),
    }
}

/// The polling thread and both programs, connected. On the thread that is to poll.
fn build(
    choice: &Choice,
    ping: Ping,
    place: Place,
    pool: &Arc<Mempool>,
) -> io::Result<(Lcore, [Half; 2], Arc<LcoreWake>)> {
    let preset = Config::preset(Preset::Pair).map_err(io::Error::other)?;
    let infos = preset.nic_infos();
    let link = FabricLinkConfig {
        capacity_packets: choice.tx_ring as usize,
        ..FabricLinkConfig::default()
    };
    let ends = FabricLink::pair(&link).map_err(io::Error::other)?;
    let nics = [ends.0, ends.1].into_iter().zip(&infos);
    let nics = nics.map(|(end, info)| {
        let engine = EngineConfig {
            congestion: info.congestion.now().congestion,
            ..pair::engine(choice.ack_policy)
        };
        pair::nic_of(info, Port::new(end), engine)
    });
    let config = LcoreConfig {
        cpu: place.lcore,
        helper_cpus: Arc::new([]),
        cpus: place.cpus,
        idle: match choice.idle {
            Idle::Spin => IdlePolicy::Spin,
            Idle::Adaptive => IdlePolicy::Adaptive,
        },
        requests_per_poll: preset.limits.requests_per_poll,
    };
    let (mut lcore, mailbox, wake) = pair::lcore_with(config, nics.collect(), Arc::clone(pool))?;
    lcore.tune(choice.tuning);
    let mtu = choice.path_mtu();
    let mut programs = 0;
    let (a, b) = pair::ends(
        &mut lcore,
        &mailbox,
        &infos,
        &mut programs,
        mtu,
        DEPTH,
        ACK_TIMEOUT,
    )?;
    let mut half = |side: Side| -> io::Result<Half> {
        let mut buffer = Buffer::new(2 * start(ping.len))?;
        let (addr, len) = (buffer.addr(), buffer.len() as u64);
        let reach = buffer.reach()?;
        let mut poll = || {
            lcore.turn(&mut NoProbe);
        };
        let key = side
            .producer
            .register_reached(addr, len, reach, &mut poll)?;
        Ok(Half {
            side,
            buffer,
            key,
            len: ping.len,
            sent: 0,
            seen: 0,
        })
    };
    let halves = [half(a)?, half(b)?];
    Ok((lcore, halves, wake))
}

/// Bytes of a message, and where in the buffer begins what is sent.
fn start(len: u32) -> usize {
    (len as usize).next_multiple_of(64)
}

/// Messages there and back; nanoseconds of half a trip, median.
fn trips(halves: &mut [Half; 2], ping: Ping, wake: &LcoreWake, tsc_hz: f64) -> io::Result<f64> {
    let [a, b] = halves;
    if ping.send {
        for half in [&mut *a, &mut *b] {
            (0..1 << (DEPTH - 1)).for_each(|_| half.receive());
        }
    }
    let mut trips = Vec::with_capacity(TRIPS);
    let enough = tsc() + (LONGEST.as_secs_f64() * tsc_hz) as u64;
    let mut begin = tsc();
    while trips.len() < TRIPS && (trips.len() < LEAST || begin < enough) {
        a.send_to(b, ping.send);
        b.wait(ping.send, wake, begin)?;
        b.send_to(a, ping.send);
        a.wait(ping.send, wake, begin)?;
        let end = tsc();
        trips.push((end - begin) as f64 / 2.0 / tsc_hz * 1e9);
        begin = end;
    }
    // The first ones find cold caches.
    let warm = trips.len() / WARM_UP;
    trips.drain(..warm);
    Ok(median(&mut trips))
}

impl Half {
    /// The word at the end of `len` bytes from `offset` on.
    fn word(&self, offset: usize) -> *mut u64 {
        let at = offset + (self.len as usize).max(8) - 8;
        assert!(at % 8 == 0 && at + 8 <= self.buffer.len());
        (self.buffer.addr() + at as u64) as *mut u64
    }

    fn sge(&self, offset: usize) -> Sge {
        Sge {
            addr: self.buffer.addr() + offset as u64,
            length: self.len,
            lkey: self.key,
        }
    }

    fn receive(&mut self) {
        let sge = self.sge(0);
        self.side.producer.post_recv(&mut self.side.qp, sge);
    }

    fn send_to(&mut self, peer: &Half, send: bool) {
        self.sent += 1;
        let from = start(self.len);
        let opcode = match send {
            true => WrOpcode::Send,
            false => {
                // SAFETY: aligned and inside the buffer, checked by `word`; the lcore reads it by raw copies.
                unsafe { self.word(from).write_volatile(self.sent) };
                WrOpcode::Write
            }
        };
        let flags = match self.sent % SIGNAL_EVERY {
            0 => SIGNALED,
            _ => 0,
        };
        let sge = self.sge(from);
        let remote = (peer.buffer.addr(), peer.key);
        let Side { producer, qp, .. } = &mut self.side;
        producer.post_send(qp, opcode, flags, sge, remote, None);
        producer.ring(qp);
    }

    /// Waits for the other one's message.
    fn wait(&mut self, send: bool, wake: &LcoreWake, begin: u64) -> io::Result<()> {
        // A SEND is seen by its completion.
        let word = (!send).then(|| self.word(0));
        // SAFETY: as in `send_to`.
        let look = || word.map_or(0, |word| unsafe { word.read_volatile() });
        loop {
            // As the shim does it behind a bell.
            if wake.sleeping.load(Ordering::Relaxed) != 0 {
                wake.ring();
            }
            let word = look();
            let mut came = word != self.seen;
            while let Some(cqe) = self.side.producer.poll_cq() {
                if cqe.status != 0 {
                    let reason = format!("a completion with status {}", cqe.status);
                    return Err(io::Error::other(reason));
                }
                if cqe.opcode & RECEIVED != 0 {
                    self.receive();
                    came = true;
                }
            }
            if came {
                self.seen = word;
                return Ok(());
            }
            if tsc().wrapping_sub(begin) > LOST {
                return Err(io::Error::other("no answer came"));
            }
            std::hint::spin_loop();
        }
    }
}
