//! Which instructions ICRCs are computed by, and whether they are right on this CPU.

use roceline_engine::wire::icrc::{Choice, ENV, Kernel, KernelError};

use super::Finding;

const WHAT: &str = "ICRC";
/// What goes into a report of a CPU on which a kernel is wrong.
const REPORT: &str = "please report it, with the CPU's model and microcode of /proc/cpuinfo";

/// What a daemon that starts now would use.
pub(super) fn kernel() -> Finding {
    told(Kernel::choose())
}

fn told(choice: Result<Choice, KernelError>) -> Finding {
    let choice = match choice {
        Ok(choice) => choice,
        Err(error) => {
            let remedy = format!("{ENV} names another or is not set");
            return Finding::missing(WHAT, error.to_string(), remedy);
        }
    };
    let name = choice.kernel.name();
    let wrong: Vec<&str> = choice.wrong.iter().map(|kernel| kernel.name()).collect();
    match &*wrong {
        [] if cfg!(target_arch = "x86_64") && name == "portable" => Finding::off(
            WHAT,
            "by tables: several times as slow as carry-less multiplication",
            "a CPU, or a hypervisor that shows it, with PCLMULQDQ, better VPCLMULQDQ",
        ),
        [] => Finding::ok(WHAT, format!("{name}, tried out: right on this CPU")),
        wrong => Finding::off(
            WHAT,
            format!(
                "{} computes wrong ICRCs on this CPU: {name} is used",
                wrong.join(", ")
            ),
            REPORT,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    fn choice(wrong: &[&'static str]) -> Choice {
        let named = |name: &&str| Kernel::named(name).expect("every CPU has it");
        Choice {
            kernel: Kernel::all().next().expect("the portable one at least"),
            wrong: wrong.iter().map(named).collect(),
        }
    }

    #[test]
    fn a_kernel_that_is_wrong_is_named() {
        let finding = told(Ok(choice(&["portable"])));
        assert_eq!(finding.state, State::Off);
        let used = Kernel::all().next().expect("one").name();
        let words = format!("portable computes wrong ICRCs on this CPU: {used} is used");
        assert_eq!(finding.found, words);
        assert!(finding.remedy.is_some_and(|text| text.contains("report")));
    }

    #[test]
    fn one_that_cannot_be_had_is_missing() {
        let finding = told(Err(KernelError::Wrong("pclmulqdq")));
        assert_eq!(finding.state, State::Missing);
        assert!(finding.found.contains("`pclmulqdq`"), "{}", finding.found);
    }

    #[test]
    fn what_this_machine_has_is_right() {
        assert!(told(Ok(choice(&[]))).found.len() > 4);
        assert_ne!(kernel().state, State::Missing);
    }
}
