//! Frames that are not RoCE on their way from an lcore to the thread that answers them: a bounded queue of buffers that
//! go round, so that the lcore allocates nothing and never waits. What finds no buffer is dropped and counted.

use crossbeam_queue::ArrayQueue;

/// Frames that may wait.
const SLOTS: usize = 64;

/// The way of one NIC's frames.
#[derive(Debug)]
pub struct Pipe {
    full: ArrayQueue<Vec<u8>>,
    free: ArrayQueue<Vec<u8>>,
}

impl Pipe {
    /// For frames of up to `longest` bytes.
    pub fn new(longest: usize) -> Pipe {
        let free = ArrayQueue::new(SLOTS);
        for _ in 0..SLOTS {
            // There is room for as many as are made.
            let _ = free.push(Vec::with_capacity(longest));
        }
        Pipe {
            full: ArrayQueue::new(SLOTS),
            free,
        }
    }

    /// Puts a copy of a frame in. False if there is no room for it.
    pub fn put(&self, frame: &[u8]) -> bool {
        let Some(mut buffer) = self.free.pop() else {
            return false;
        };
        let fits = frame.len() <= buffer.capacity();
        if fits {
            buffer.clear();
            buffer.extend_from_slice(frame);
        }
        let to = if fits { &self.full } else { &self.free };
        // Both have room for all buffers that there are.
        let _ = to.push(buffer);
        fits
    }

    /// Takes the oldest frame out and shows it; false if there is none.
    pub fn take(&self, see: impl FnOnce(&[u8])) -> bool {
        let Some(buffer) = self.full.pop() else {
            return false;
        };
        see(&buffer);
        // As in `put`.
        let _ = self.free.push(buffer);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_in_order_and_what_finds_no_room_is_refused() {
        let pipe = Pipe::new(100);
        assert!(!pipe.put(&[0; 101]), "too long");
        for round in 0..3 {
            for i in 0..SLOTS as u8 {
                assert!(pipe.put(&[round, i]));
            }
            assert!(!pipe.put(&[9]));
            for i in 0..SLOTS as u8 {
                assert!(pipe.take(|frame| assert_eq!(frame, [round, i])));
            }
            assert!(!pipe.take(|_| panic!("nothing is left")));
        }
    }
}
