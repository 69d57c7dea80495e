//! `roceline wait`: returns when the daemon is ready.

use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;

use super::CliError;
use crate::control::client::{Client, ClientError};
use crate::control::query::{Query, ReadyReply};

/// Between two tries. A try is a connection on a local socket.
const PAUSE: Duration = Duration::from_millis(20);
/// What the last try gets even when no time is left: enough for a daemon that is there.
const LAST_MOMENT: Duration = Duration::from_millis(500);

/// Wait until the daemon is ready
///
/// Returns at once when it is, with exit code 1 and the reason when it is not in time.
#[derive(Debug, Parser)]
#[command(
    after_help = "Example, in a script:\n  roceline nic & roceline wait && roceline run -- ./tests"
)]
pub(super) struct Args {
    /// Seconds to wait at most
    #[arg(long, value_name = "S", default_value = "30", value_parser = seconds)]
    timeout: Duration,
}

/// It was not ready in time.
#[derive(Debug, thiserror::Error)]
#[error("not ready after {} s: {reason}", waited.as_secs_f64())]
pub(super) struct NotReady {
    waited: Duration,
    reason: ClientError,
}

pub(super) fn run(args: Args, socket: &Path) -> Result<(), CliError> {
    let end = Instant::now() + args.timeout;
    loop {
        let last = Instant::now() >= end;
        match ask(socket, end) {
            Ok(()) => return Ok(()),
            Err(reason) if last => {
                return Err(NotReady {
                    waited: args.timeout,
                    reason,
                }
                .into());
            }
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

/// One question. A daemon that is just starting takes the connection and answers later, so the answer is awaited by
/// another thread, which ends with the process.
fn ask(socket: &Path, end: Instant) -> Result<(), ClientError> {
    let (answer, answers) = mpsc::sync_channel(1);
    let path = socket.to_owned();
    thread::spawn(move || {
        let asked = Client::connect(&path).and_then(|c| c.ask::<ReadyReply>(&Query::Ready));
        // Nobody waits for it any more: then nobody misses it.
        let _ = answer.send(asked);
    });
    let patience = end
        .saturating_duration_since(Instant::now())
        .max(LAST_MOMENT);
    match answers.recv_timeout(patience) {
        Ok(asked) => asked.map(|_| ()),
        Err(_) => Err(ClientError::NotYet),
    }
}

/// A number of seconds, with fractions: at most a thousand years, so that the end is a time that there is.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    const LONGEST: Duration = Duration::from_secs(1000 * 366 * 24 * 60 * 60);
    text.parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|seconds| *seconds <= LONGEST)
        .ok_or_else(|| "must be a number of seconds, such as 30 or 0.5".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_does_not_answer_is_said_to_be_there() {
        let path = std::env::temp_dir().join(format!("roceline-wait-{}.sock", std::process::id()));
        // Connections wait in its queue, as they do while a daemon starts.
        let listener = crate::control::BoundSocket::bind(&path, 0o600).expect("a socket");
        let error = ask(&path, Instant::now()).expect_err("nobody answers");
        assert!(matches!(error, ClientError::NotYet), "{error}");
        drop(listener);
    }

    #[test]
    fn seconds_may_have_fractions_but_not_signs() {
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(seconds("0"), Ok(Duration::ZERO));
        for bad in ["-1", "soon", "inf", "nan", "1e300", "1e19", ""] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
        let long = seconds("3e10").expect("longer than anybody waits");
        assert!(Instant::now().checked_add(long).is_some());
    }
}
