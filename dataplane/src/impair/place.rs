//! Where rules may stand: at both sides of each NIC, and in both directions of each link of the fabric. A direction of a
//! link belongs to the NIC that sends into it.

use super::spec::{Spec, SpecError};

/// A side of a NIC, or its direction of the link that it is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Point {
    /// What the NIC sends, complete with ICRC, to others and to itself.
    Tx,
    /// What of that goes into its link.
    Link,
    /// What the NIC receives, from its port and from itself, before it is parsed.
    Rx,
}

/// One of the places, for one NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Index of the NIC.
    pub nic: u32,
    /// Which of its places.
    pub point: Point,
}

/// NICs and the links that join them. Fixed while the daemon runs.
#[derive(Clone, Debug, Default)]
pub struct Wiring {
    nics: Vec<Wired>,
}

/// A NIC's name, and its link if it has a port of the fabric.
#[derive(Clone, Debug)]
struct Wired {
    name: String,
    link: Option<String>,
}

impl Wiring {
    /// Of the NICs, in the order of their indices, each with the link that it is on.
    pub fn new<'a>(nics: impl IntoIterator<Item = (&'a str, Option<&'a str>)>) -> Wiring {
        let wired = |(name, link): (&str, Option<&str>)| Wired {
            name: name.into(),
            link: link.map(String::from),
        };
        Wiring {
            nics: nics.into_iter().map(wired).collect(),
        }
    }

    /// The places that a rule names: one, or both directions of a link.
    ///
    /// # Errors
    /// When it names none, or one that does not exist.
    pub fn places(&self, spec: &Spec) -> Result<Vec<Place>, SpecError> {
        match (spec.get("nic"), spec.get("link")) {
            (Some(_), None) => self.side(spec).map(|place| vec![place]),
            (None, Some(link)) => self.directions(spec, link),
            (Some(_), Some(_)) => Err(SpecError::Whole(
                "a rule stands at `nic` or on `link`, not at both: make two rules".into(),
            )),
            (None, None) => Err(SpecError::Whole(
                "a rule needs a place: `nic` with `side` tx or rx, or `link`".into(),
            )),
        }
    }

    fn side(&self, spec: &Spec) -> Result<Place, SpecError> {
        let nic = self.nic(spec, "nic")?;
        if spec.get("from").is_some() {
            return Err(spec.bad("from", "goes with `link`; a `nic` has a `side`"));
        }
        let point = spec.parse("side", |side| match side {
            "tx" => Ok(Point::Tx),
            "rx" => Ok(Point::Rx),
            _ => Err("must be tx (what the NIC sends) or rx (what it receives)".into()),
        })?;
        match point {
            Some(point) => Ok(Place { nic, point }),
            None => Err(SpecError::Whole(
                "a rule at a `nic` needs its `side`: tx (what it sends) or rx (what it receives); --tx or --rx on the \
                 command line"
                    .into(),
            )),
        }
    }

    fn directions(&self, spec: &Spec, link: &str) -> Result<Vec<Place>, SpecError> {
        if spec.get("side").is_some() {
            return Err(spec.bad("side", "goes with `nic`; a `link` has a `from`"));
        }
        let on_link = |nic: u32| self.nics[nic as usize].link.as_deref() == Some(link);
        let ends: Vec<u32> = (0..self.nics.len() as u32)
            .filter(|&n| on_link(n))
            .collect();
        if ends.is_empty() {
            let mut links: Vec<&str> = self.nics.iter().filter_map(|n| n.link.as_deref()).collect();
            links.sort_unstable();
            links.dedup();
            let problem = match links.is_empty() {
                true => "there are no links here: no NIC has a port \"fabric:LINK\"".into(),
                false => format!("no such link here; there is {}", links.join(", ")),
            };
            return Err(spec.bad("link", problem));
        }
        let from = match spec.get("from") {
            Some(_) => Some(self.nic(spec, "from")?),
            None => None,
        };
        if from.is_some_and(|nic| !on_link(nic)) {
            return Err(spec.bad("from", format!("is not on link {link}")));
        }
        Ok(ends
            .into_iter()
            .filter(|&nic| from.is_none_or(|from| from == nic))
            .map(|nic| Place {
                nic,
                point: Point::Link,
            })
            .collect())
    }

    fn nic(&self, spec: &Spec, key: &'static str) -> Result<u32, SpecError> {
        let name = spec.get(key).unwrap_or_default();
        let index = self.nics.iter().position(|nic| nic.name == name);
        index.map(|index| index as u32).ok_or_else(|| {
            let names: Vec<&str> = self.nics.iter().map(|nic| nic.name.as_str()).collect();
            spec.bad(
                key,
                format!("no such NIC here; there is {}", names.join(", ")),
            )
        })
    }

    /// A place as people name it.
    pub fn describe(&self, place: Place) -> String {
        let Some(nic) = self.nics.get(place.nic as usize) else {
            return format!("NIC {}", place.nic);
        };
        let link = nic.link.as_deref().unwrap_or("?");
        match place.point {
            Point::Tx => format!("{} tx", nic.name),
            Point::Rx => format!("{} rx", nic.name),
            Point::Link => format!("{link} from {}", nic.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(rule: &str) -> Result<Vec<String>, String> {
        let wiring = Wiring::new([
            ("roce0", Some("cable")),
            ("roce1", Some("cable")),
            ("out", None),
        ]);
        let spec: Spec = toml::from_str(rule).unwrap();
        let places = wiring.places(&spec).map_err(|error| error.to_string())?;
        Ok(places.into_iter().map(|p| wiring.describe(p)).collect())
    }

    #[test]
    fn a_rule_stands_at_a_side_or_in_the_directions_of_a_link() {
        let one = |rule: &str| places(rule).unwrap().join(", ");
        assert_eq!(one("nic = 'roce1'\nside = 'tx'"), "roce1 tx");
        assert_eq!(one("nic = 'out'\nside = 'rx'"), "out rx");
        assert_eq!(one("link = 'cable'"), "cable from roce0, cable from roce1");
        assert_eq!(one("link = 'cable'\nfrom = 'roce1'"), "cable from roce1");
    }

    #[test]
    fn places_that_do_not_exist_are_named_with_those_that_do() {
        for (rule, said) in [
            ("drop = true", "needs a place"),
            ("nic = 'roce0'", "needs its `side`"),
            ("nic = 'roce0'\nside = 'up'", "side = \"up\": must be tx"),
            (
                "nic = 'roce2'\nside = 'tx'",
                "nic = \"roce2\": no such NIC here; there is roce0, roce1, out",
            ),
            ("nic = 'roce0'\nlink = 'cable'", "not at both"),
            (
                "nic = 'roce0'\nside = 'tx'\nfrom = 'roce1'",
                "from = \"roce1\": goes with",
            ),
            ("link = 'cable'\nside = 'tx'", "side = \"tx\": goes with"),
            (
                "link = 'cabel'",
                "link = \"cabel\": no such link here; there is cable",
            ),
            (
                "link = 'cable'\nfrom = 'out'",
                "from = \"out\": is not on link cable",
            ),
            ("link = 'cable'\nfrom = 'x'", "from = \"x\": no such NIC"),
        ] {
            let error = places(rule).unwrap_err();
            assert!(error.contains(said), "{rule}: {error}");
        }
    }
}
