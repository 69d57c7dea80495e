//! Every scenario of `scenarios/` is run, and each of its bands holds.

use roceline::scenario::runs::{Request, jobs, run_all};
use roceline::scenario::verdict::verdicts;
use roceline::scenario::{BUILT_IN, Document};

#[test]
fn every_scenario_lands_in_its_bands() {
    let mut missed = Vec::new();
    for built_in in BUILT_IN {
        let document = Document::load(built_in.name).expect("a scenario that can be read");
        let jobs = jobs(&document, &Request::default()).expect("its jobs");
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let runs = run_all(jobs, threads, &|_| ()).expect("runs that come to their end");
        for verdict in verdicts(&runs, false) {
            if !verdict.holds {
                missed.push(format!(
                    "{} [{}]: {} is {:?}, not in {:?} to {:?}",
                    built_in.name,
                    verdict.run,
                    verdict.expect.metric,
                    verdict.value,
                    verdict.expect.min,
                    verdict.expect.max
                ));
            }
        }
    }
    assert!(missed.is_empty(), "\n{}", missed.join("\n"));
}
