//! The responder's half on a core of its own: a thread of this process, or another process with an EAL of its own. It polls
//! its NIC and its program without pause, and between polls answers what the requester's half asks.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::end::{End, EndConfig, Introduction};
use super::load::{Load, Responder};
use super::machine::pin;
use super::ping_pong::Echo;
use crate::lcore::probe::{NoProbe, tsc};
use crate::port::{Eal, Mempool, Port};

/// Polls between two looks at what is asked.
const POLLS: u32 = 256;

/// What can be asked.
#[derive(Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Connect the QPs. -> `Done`
    Connect(Introduction),
    /// Get ready for a load. -> `Done`
    Prepare(Load),
    /// Send back each message of so many bytes; 0: no longer. -> `Done`
    Echo(u32),
    /// What has been done so far. -> `Report`
    Report,
    /// Leave the CPU alone for so many milliseconds. -> `Done` after these
    Rest(u64),
}

/// What comes back.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The first: it is there.
    Introduction(Introduction),
    /// Done.
    Done,
    /// What it has done.
    Report(Report),
    /// It could not.
    Failed(String),
}

/// What a half on a core of its own has done so far.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// RoCE packets received.
    pub packets: u64,
    /// Times that something was sent again.
    pub retries: u64,
    /// Cycles in polls in which something was done, and all of them.
    pub busy: u64,
    /// Cycles in all polls.
    pub all: u64,
}

/// A half on a core of its own.
#[derive(Debug)]
pub struct Far {
    line: Line,
    introduction: Introduction,
}

#[derive(Debug)]
enum Line {
    Thread {
        asks: Option<Sender<Ask>>,
        answers: Receiver<Answer>,
        thread: Option<JoinHandle<()>>,
    },
    Process {
        child: Child,
        asks: Option<ChildStdin>,
        answers: BufReader<ChildStdout>,
    },
}

impl Far {
    /// Starts a thread on `cpu`.
    ///
    /// # Errors
    /// When the half cannot be built.
    pub fn thread(
        config: EndConfig,
        port: Port,
        pool: Arc<Mempool>,
        eal: &Eal,
        cpu: Option<usize>,
    ) -> io::Result<Far> {
        let (asks, asked) = channel();
        let (tell, answers) = channel();
        let eal = eal.clone();
        let thread = thread::Builder::new()
            .name("responder".into())
            .spawn(move || {
                let answer = |answer| tell.send(answer).is_ok();
                let built = (|| {
                    if let Some(cpu) = cpu.filter(|&cpu| !pin(cpu)) {
                        return Err(io::Error::other(format!("cannot run on CPU {cpu}")));
                    }
                    let registered = eal.register_thread().map_err(io::Error::other)?;
                    Ok((End::new(&config, port, pool)?, registered))
                })();
                match built {
                    Ok((mut end, _registered)) => serve(&mut end, &asked, answer),
                    Err(error) => {
                        answer(Answer::Failed(error.to_string()));
                    }
                }
            })?;
        Far::greeted(Line::Thread {
            asks: Some(asks),
            answers,
            thread: Some(thread),
        })
    }

    /// Starts a process of this program with these arguments, which calls [`serve_parent`].
    ///
    /// # Errors
    /// When it does not start, or cannot build its half.
    pub fn process(arguments: &[String]) -> io::Result<Far> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let asks = child.stdin.take();
        let answers = child.stdout.take().map(BufReader::new);
        let answers = answers.ok_or_else(|| io::Error::other("no pipe"))?;
        Far::greeted(Line::Process {
            child,
            asks,
            answers,
        })
    }

    fn greeted(mut line: Line) -> io::Result<Far> {
        match line.answer()? {
            Answer::Introduction(introduction) => Ok(Far { line, introduction }),
            other => Err(unexpected(&other)),
        }
    }

    /// What it said of itself.
    pub fn introduction(&self) -> &Introduction {
        &self.introduction
    }

    /// Asks for something that is done at once.
    ///
    /// # Errors
    /// When it could not be done.
    pub fn tell(&mut self, ask: Ask) -> io::Result<()> {
        match self.line.ask(ask)? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Does something while the other half leaves its CPU alone for at least so long.
    ///
    /// # Errors
    /// When it is gone.
    pub fn meanwhile<T>(&mut self, time: Duration, work: impl FnOnce() -> T) -> io::Result<T> {
        self.line.send(Ask::Rest(time.as_millis() as u64))?;
        let done = work();
        match self.line.answer()? {
            Answer::Done => Ok(done),
            other => Err(unexpected(&other)),
        }
    }

    /// What it has done so far.
    ///
    /// # Errors
    /// When it is gone.
    pub fn report(&mut self) -> io::Result<Report> {
        match self.line.ask(Ask::Report)? {
            Answer::Report(report) => Ok(report),
            other => Err(unexpected(&other)),
        }
    }
}

fn unexpected(answer: &Answer) -> io::Error {
    io::Error::other(match answer {
        Answer::Failed(reason) => format!("the other half: {reason}"),
        other => format!("the other half answered {other:?}"),
    })
}

fn gone() -> io::Error {
    io::Error::other("the other half is gone: the case has no figure")
}

/// How a process has ended that answers no more.
fn ended(child: &mut Child) -> io::Error {
    let how = match child.wait() {
        Ok(status) => match (status.signal(), status.code()) {
            (Some(signal), _) => format!("signal {signal}"),
            (None, Some(code)) => format!("exit code {code}"),
            (None, None) => "nobody knows how".into(),
        },
        Err(error) => error.to_string(),
    };
    io::Error::other(format!(
        "the other process ended ({how}): the case has no figure"
    ))
}

impl Line {
    fn ask(&mut self, ask: Ask) -> io::Result<Answer> {
        self.send(ask)?;
        self.answer()
    }

    fn send(&mut self, ask: Ask) -> io::Result<()> {
        match self {
            Line::Thread { asks, .. } => {
                let asks = asks.as_ref().ok_or_else(gone)?;
                asks.send(ask).map_err(|_| gone())
            }
            Line::Process { child, asks, .. } => {
                let pipe = asks.as_mut().ok_or_else(gone)?;
                let text = serde_json::to_string(&ask)?;
                let sent = writeln!(pipe, "{text}").and_then(|()| pipe.flush());
                sent.map_err(|error| match error.kind() {
                    // Nobody reads any more.
                    io::ErrorKind::BrokenPipe => {
                        *asks = None;
                        ended(child)
                    }
                    _ => error,
                })
            }
        }
    }

    fn answer(&mut self) -> io::Result<Answer> {
        match self {
            Line::Thread { answers, .. } => answers.recv().map_err(|_| gone()),
            Line::Process {
                child,
                asks,
                answers,
            } => {
                let mut text = String::new();
                if answers.read_line(&mut text)? == 0 {
                    // Should it still be there, it ends with what is asked.
                    *asks = None;
                    return Err(ended(child));
                }
                Ok(serde_json::from_str(&text)?)
            }
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // The end of what is asked is the end of the half.
        match self {
            Line::Thread { asks, thread, .. } => {
                *asks = None;
                if let Some(thread) = thread.take() {
                    // It has said what went wrong with it.
                    let _ = thread.join();
                }
            }
            Line::Process { child, asks, .. } => {
                *asks = None;
                let _ = child.wait();
            }
        }
    }
}

/// Runs a half until nobody asks any more.
fn serve(end: &mut End, asked: &Receiver<Ask>, answer: impl Fn(Answer) -> bool) {
    let mut responder = Responder::default();
    let mut echo = Echo::default();
    let mut report = Report::default();
    answer(Answer::Introduction(end.introduction()));
    loop {
        for _ in 0..POLLS {
            let start = tsc();
            let work = end.lcore.turn(&mut NoProbe);
            let cycles = tsc() - start;
            report.all += cycles;
            if work > 0 {
                report.busy += cycles;
            }
            if echo.is_on() {
                echo.step(end);
            } else {
                responder.step(end);
            }
        }
        let said = match asked.try_recv() {
            Err(TryRecvError::Empty) => continue,
            Err(TryRecvError::Disconnected) => return,
            Ok(Ask::Connect(peer)) => {
                let connected = end.connect(&peer);
                echo = Echo::new(peer);
                connected.map_or_else(|e| Answer::Failed(e.to_string()), |()| Answer::Done)
            }
            Ok(Ask::Prepare(load)) => {
                responder.prepare(&load, end);
                Answer::Done
            }
            Ok(Ask::Echo(len)) => {
                echo.switch(len, end);
                Answer::Done
            }
            Ok(Ask::Rest(ms)) => {
                thread::sleep(Duration::from_millis(ms));
                Answer::Done
            }
            Ok(Ask::Report) => {
                report.packets = end.packets();
                report.retries = end.retries();
                match responder.check() {
                    Ok(()) => Answer::Report(report),
                    Err(error) => Answer::Failed(error.to_string()),
                }
            }
        };
        if !answer(said) {
            return;
        }
    }
}

/// The process that [`Far::process`] starts: asked on stdin, answers on stdout, until stdin ends.
///
/// # Errors
/// When the half cannot be built.
pub fn serve_parent(config: &EndConfig, port: Port, pool: Arc<Mempool>) -> io::Result<()> {
    let (asks, asked) = channel();
    // Reading blocks, so it is another thread's; it ends with stdin.
    thread::spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            let Ok(ask) = serde_json::from_str(&line) else {
                return;
            };
            if asks.send(ask).is_err() {
                return;
            }
        }
    });
    let answer = |answer: Answer| {
        let text = serde_json::to_string(&answer).unwrap_or_default();
        let mut out = io::stdout().lock();
        writeln!(out, "{text}").and_then(|()| out.flush()).is_ok()
    };
    match End::new(config, port, pool) {
        Ok(mut end) => serve(&mut end, &asked, answer),
        Err(error) => {
            answer(Answer::Failed(error.to_string()));
        }
    }
    Ok(())
}
