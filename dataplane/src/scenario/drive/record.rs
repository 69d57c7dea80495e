//! Links whose packets go into a file: `--pcap node3=FILE`, `--pcap switch0.port2=FILE`.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;

use crate::scenario::ScenarioError;
use crate::sim::{Point, Sim};

/// The beginning of a link, both directions of which are recorded there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Where.
    pub at: Point,
    /// The file.
    pub file: PathBuf,
    /// Bytes of each packet.
    pub snaplen: u32,
    /// The option as it was given.
    option: String,
}

impl Record {
    /// Parses `LINK=FILE`.
    pub fn parse(text: &str, snaplen: u32) -> Result<Record, ScenarioError> {
        let found = text.split_once('=').and_then(|(link, file)| {
            let at = point(link.trim())?;
            (!file.is_empty()).then(|| (at, PathBuf::from(file)))
        });
        let option = format!("--pcap {text}");
        match found {
            Some((at, file)) => Ok(Record {
                at,
                file,
                snaplen,
                option,
            }),
            None => Err(ScenarioError::Setting {
                setting: option,
                problem: "must be LINK=FILE; a link is that of a node, node3, or of a port of a switch, switch0.port2"
                    .into(),
            }),
        }
    }

    /// Whether all are of different links, into different files: a link has room for one.
    pub(in crate::scenario) fn distinct(records: &[Record]) -> Result<(), ScenarioError> {
        for (number, record) in records.iter().enumerate() {
            for other in &records[..number] {
                let problem = match (other.at == record.at, other.file == record.file) {
                    (true, _) => "the link is recorded already",
                    (_, true) => "the file is written already",
                    _ => continue,
                };
                return Err(ScenarioError::Setting {
                    setting: record.option.clone(),
                    problem: format!("{problem}, by {}: leave one of them out", other.option),
                });
            }
        }
        Ok(())
    }

    /// Begins to record.
    pub(super) fn begin(&self, sim: &mut Sim) -> Result<(), ScenarioError> {
        let none = |what: String| ScenarioError::Setting {
            setting: self.option.clone(),
            problem: what,
        };
        let (nodes, switches) = (sim.nodes().len(), sim.switches().len());
        match self.at {
            Point::Node(node) if node >= nodes => {
                return Err(none(format!("there are the nodes 0 to {}", nodes - 1)));
            }
            Point::Port(_, _) if switches == 0 => {
                return Err(none("there is no switch: name a node".into()));
            }
            Point::Port(switch, _) if switch >= switches => {
                return Err(none(format!(
                    "there are the switches 0 to {}",
                    switches - 1
                )));
            }
            Point::Port(switch, port) if usize::from(port) >= sim.switch(switch).ports() => {
                let last = sim.switch(switch).ports() - 1;
                return Err(none(format!("switch{switch} has the ports 0 to {last}")));
            }
            Point::Node(_) | Point::Port(..) => {}
        }
        let file = File::create(&self.file).map_err(|source| self.wrong(source))?;
        let out = Box::new(BufWriter::new(file));
        sim.record(self.at, out, self.snaplen)
            .map_err(|source| self.wrong(source))
    }

    pub(super) fn wrong(&self, source: std::io::Error) -> ScenarioError {
        ScenarioError::File {
            file: self.file.display().to_string(),
            source,
        }
    }
}

fn point(text: &str) -> Option<Point> {
    if let Some(node) = text.strip_prefix("node") {
        return node.parse().ok().map(Point::Node);
    }
    let (switch, port) = text.strip_prefix("switch")?.split_once(".port")?;
    Some(Point::Port(switch.parse().ok()?, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_recorded_once_and_a_file_written_once() {
        let check = |texts: [&str; 2]| {
            let records = texts.map(|text| Record::parse(text, 128).unwrap());
            Record::distinct(&records).map_err(|error| error.to_string())
        };
        check(["node0=a", "node1=b"]).unwrap();
        let error = check(["node0=a", "node00=b"]).unwrap_err();
        assert!(
            error.contains("--pcap node00=b: the link") && error.contains("--pcap node0=a"),
            "{error}"
        );
        let error = check(["node0=a", "node1=a"]).unwrap_err();
        assert!(error.contains("the file"), "{error}");
    }

    #[test]
    fn links_are_named_by_an_end() {
        let at = |text: &str| Record::parse(text, 128).map(|record| record.at);
        assert_eq!(at("node3=a.pcapng").unwrap(), Point::Node(3));
        assert_eq!(at("switch1.port12=a=b").unwrap(), Point::Port(1, 12));
        for text in [
            "node3",
            "node3=",
            "nod3=a",
            "switch1=a",
            "switch1.portx=a",
            "switch.port1=a",
        ] {
            let error = at(text).unwrap_err().to_string();
            assert!(
                error.contains(text) && error.contains("switch0.port2"),
                "{error}"
            );
        }
    }
}
