//! Objects of an lcore come and go far more often than there is room for at once.

use roceline::bench::Pair;
use roceline::lcore::probe::NoProbe;
use roceline_engine::AckPolicy;
use roceline_engine::verbs::Mtu;

#[test]
fn regions_are_registered_and_taken_back_many_times_over() {
    let mut pair = Pair::new(AckPolicy::Coalesced, Mtu::M4096, 4).unwrap();
    let memory = [0u8; 64];
    let lcore = &mut pair.lcore;
    let mut poll = || {
        lcore.turn(&mut NoProbe);
    };
    let mut last = 0;
    for round in 0..5_000 {
        let key = pair
            .a
            .producer
            .register(memory.as_ptr() as u64, 64, &mut poll)
            .unwrap();
        assert_ne!(key, last, "round {round}: a key is not used again at once");
        pair.a.producer.deregister(key, &mut poll).unwrap();
        assert!(pair.a.producer.deregister(key, &mut poll).is_err(), "twice");
        last = key;
    }
}
