//! What must hold for any bytes from the wire. An ordinary function, so that stable tests can run it
//! over captures and a fuzzer over anything.

use super::{IcrcState, bth, icrc, parse, udp};

/// Parses `frame` and checks what a caller relies on; panics only where the parser is wrong.
pub fn frame(frame: &[u8]) {
    if let Some(quick) = super::plain::parse(frame) {
        let slow = super::parse::parse_any(frame);
        assert_eq!(slow, Ok(quick), "the quick way takes it for something else");
    }
    let Ok(parsed) = parse(frame) else {
        return;
    };
    let packet = &parsed.packet;
    let info = packet.opcode.info();
    let l3 = parsed.l3_offset as usize;
    let start = packet.payload_offset as usize;
    let end = start + packet.payload_len as usize;
    let icrc_at = parsed.icrc_offset as usize;
    assert!(icrc_at + icrc::LEN <= frame.len(), "ICRC outside the frame");
    assert!(
        end <= icrc_at && icrc_at - end < 4,
        "payload and pad do not end at the ICRC"
    );
    assert_eq!(
        (icrc_at - start) % 4,
        0,
        "payload and pad are no multiple of four"
    );
    assert!(
        info.payload || start == icrc_at,
        "payload behind an opcode that has none"
    );

    let bth_at = start - usize::from(info.ext_len) - bth::LEN;
    let ip_len = if frame[l3] >> 4 == 6 { 40 } else { 20 };
    assert_eq!(bth_at, l3 + ip_len + udp::LEN, "headers do not add up");

    // headers in pieces or at once: the ICRC is the same
    let mut state = IcrcState::new(&frame[l3..start]);
    state.update(&frame[start..icrc_at]);
    let whole = icrc::icrc_of_frame(frame, l3, icrc_at);
    assert_eq!(state.finish(), whole);
    assert_eq!(
        icrc::verify(frame, &parsed),
        frame[icrc_at..icrc_at + icrc::LEN] == whole
    );

    // the extended headers written back and read again say the same
    let mut ext = [0; 32];
    assert!(
        packet.ext.emit(info.headers, &mut ext).is_some(),
        "no extended headers exceed 28 bytes"
    );
    assert_eq!(
        super::ExtHeaders::parse(info.headers, &ext),
        Some(packet.ext)
    );
}
