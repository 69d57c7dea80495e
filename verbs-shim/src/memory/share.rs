//! From a region's addresses to pieces that the daemon can map: private memory is made shareable where it can be, memory objects
//! are passed, and what was found is sent.

use std::ffi::c_int;

use roceline_abi::control::{Kind, MemoryPiece, MemoryPolicy, Plain};

use super::maps::Vma;
use super::object::Object;
use super::spans::{Span, Spans};
use super::swap::{self, Writers};
use super::{File, State, apply_unforked, maps, object, pins};
use crate::client;
use crate::context::Context;
use crate::say::say;
use crate::sys;
use crate::view::env;

impl State {
    /// Makes what can be of `span` shared, and sends the pieces of it: `head`, then pieces, in messages of `kind`. Whether there
    /// was any.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn map(
        &mut self,
        context: &Context,
        socket: c_int,
        span: Span,
        policy: MemoryPolicy,
        kind: Kind,
        head: &[u8],
        scratch: &mut [u8],
    ) -> bool {
        self.share(context, span, policy);
        let pieces = self.pieces(context, socket, span, scratch);
        if pieces == 0 {
            return false;
        }
        let bytes = &scratch[..pieces * size_of::<MemoryPiece>()];
        let sent = client::exchange(socket, kind, [head, bytes, &[]], None, &mut []);
        sent.is_ok_and(|reply| reply.header.error == 0)
    }

    /// Makes what can be of `span` shared with our object.
    fn share(&mut self, context: &Context, span: Span, policy: MemoryPolicy) {
        // All of it is shared, as parts of a larger region are: nothing can change.
        if self.swapped.first_not_in(span).is_none()
            || self.is_one_too_many(span)
            || !self.collect_shareable(span)
        {
            return;
        }
        let changes = |vma: &Vma| {
            let part = vma.span.common(span).filter(|_| vma.is_swappable());
            part.is_some_and(|part| self.swapped.first_not_in(part).is_some())
        };
        if !self.vmas.as_slice().iter().any(changes) {
            return;
        }
        if policy == MemoryPolicy::Auto && pins::any_but_maps() {
            return;
        }
        let mut writers = None;
        for i in 0..self.vmas.as_slice().len() {
            let Some(&vma) = self.vmas.as_slice().get(i) else {
                break;
            };
            let Some(mut rest) = vma.span.common(span).filter(|_| vma.is_swappable()) else {
                continue;
            };
            let Some(object) = object::for_private(&vma) else {
                continue;
            };
            // What was shared once and is private now was mapped anew while its region still has the old pages.
            while let Some(part) = self.swapped.first_not_in(rest) {
                rest.start = part.end;
                let daemon = self.regions.is_registered(part, context.serial());
                let enough = match &writers {
                    Some(Writers::Held(_)) => true,
                    Some(Writers::None) => !daemon,
                    None => false,
                };
                if !enough {
                    writers = self.writers(daemon);
                }
                if let Some(writers) = &writers {
                    self.share_part(&object, part, vma.protection(), writers);
                }
            }
        }
        self.note();
    }

    /// Whether `span` would be one place more beyond what is good. Each is two mappings more of the process, of which the kernel
    /// allows 65530 unless it is told otherwise (`vm.max_map_count`), and all are read at each registration: a program that
    /// registers thousands of scattered pages would pay more for that than it gains.
    fn is_one_too_many(&self, span: Span) -> bool {
        const SMALL: usize = 1 << 20;
        let most = if span.len() < SMALL { 512 } else { 8192 };
        let around = Span {
            start: span.start.saturating_sub(1),
            end: span.end.saturating_add(1),
        };
        self.swapped.as_slice().len() >= most && self.swapped.first_in(around).is_none()
    }

    /// Collects the private mappings of `span`, and all of our objects' that lie elsewhere than their offset says.
    ///
    /// The stack of a thread must stay private: after a fork parent and child run on it at the same time. It is known by the
    /// guard page below it, and what is above that is left out as far as a stack reaches.
    fn collect_shareable(&mut self, span: Span) -> bool {
        let objects = object::all();
        let stack = swap::longest_stack();
        let mut guard_end = 0;
        self.vmas.clear();
        let vmas = &mut self.vmas;
        let mut room = true;
        maps::each(|vma, _| {
            pins::note(vma);
            let mut vma = *vma;
            let above_guard = vma.span.start == guard_end;
            let moved = objects.of(&vma).is_some() && vma.offset != vma.span.start as u64;
            let private = vma.is_swappable() && vma.perms[..3] != *b"---";
            if private && above_guard && !vma.is_private_huge() {
                vma.span.start = vma.span.end.min(vma.span.start.saturating_add(stack));
            }
            if vma.perms[..3] == *b"---" {
                guard_end = vma.span.end;
            }
            if moved || (private && vma.span.common(span).is_some()) {
                room = vmas.push(vma);
            }
            room
        }) && room
    }

    /// Makes a part of one mapping shared, without this thread's own pages and without pages that are mapped elsewhere.
    fn share_part(&mut self, object: &Object, part: Span, protection: c_int, writers: &Writers) {
        let mut avoid = Spans::new();
        for own in swap::own_pages() {
            avoid.add(own);
        }
        for vma in self.vmas.as_slice() {
            if object.is_in(vma) {
                let start = vma.offset as usize;
                avoid.add(Span {
                    start,
                    end: start + vma.span.len(),
                });
            }
        }
        let mut rest = part;
        while let Some(free) = avoid.first_not_in(rest) {
            rest.start = free.end;
            let mut done = free.start;
            let unforked = &self.unforked;
            let whole = swap::to_shared(
                object,
                free,
                protection,
                writers,
                |part| apply_unforked(unforked, part),
                &mut done,
            );
            if !whole && object.is_huge() && env(c"ROCELINE_DEBUG").is_some() {
                say(format_args!(
                    "{:#x} bytes of huge pages at {done:#x} are reached through the kernel: to map them takes as many free \
                     huge pages for a moment",
                    free.end - done
                ));
            }
            if done > free.start {
                self.swapped.add(Span {
                    start: free.start,
                    end: done,
                });
            }
        }
    }

    /// Writes the pieces of `span` that the daemon can map to `scratch`; gives their number.
    fn pieces(
        &mut self,
        context: &Context,
        socket: c_int,
        span: Span,
        scratch: &mut [u8],
    ) -> usize {
        if !self.collect_in(span, Vma::is_shared) {
            return 0;
        }
        let ours = object::all();
        let mut count = 0;
        let mut last: Option<MemoryPiece> = None;
        let mut emit = |piece: MemoryPiece, count: &mut usize| {
            let at = *count * size_of::<MemoryPiece>();
            if let Some(place) = scratch.get_mut(at..at + size_of::<MemoryPiece>()) {
                place.copy_from_slice(piece.as_bytes());
                *count += 1;
            }
        };
        for i in 0..self.vmas.as_slice().len() {
            let Some(&vma) = self.vmas.as_slice().get(i) else {
                break;
            };
            let Some(part) = vma.span.common(span) else {
                continue;
            };
            let mine = ours.of(&vma);
            if mine.is_some() && vma.offset != vma.span.start as u64 {
                continue; // moved: its pages go by another name
            }
            let Some(file) = self.file(context, socket, &vma, mine) else {
                continue;
            };
            let piece = MemoryPiece {
                addr: part.start as u64,
                len: part.len() as u64,
                offset: vma.offset + (part.start - vma.span.start) as u64,
                file,
                reserved: 0,
            };
            match &mut last {
                Some(l)
                    if l.file == file
                        && l.addr + l.len == piece.addr
                        && l.offset + l.len == piece.offset =>
                {
                    l.len += piece.len;
                }
                _ => {
                    if let Some(done) = last.replace(piece) {
                        emit(done, &mut count);
                    }
                }
            }
        }
        if let Some(done) = last {
            emit(done, &mut count);
        }
        count
    }

    /// The number by which the context's daemon knows the file of a mapping.
    fn file(
        &mut self,
        context: &Context,
        socket: c_int,
        vma: &Vma,
        mine: Option<Object>,
    ) -> Option<u32> {
        const REFUSED: u32 = u32::MAX;
        let serial = context.serial();
        let known = |f: &&File| f.serial == serial && f.dev == vma.dev && f.inode == vma.inode;
        if let Some(file) = self.files.as_slice().iter().find(known) {
            return Some(file.number).filter(|n| *n != REFUSED);
        }
        let mut answer = [0; 4];
        let send = |fd: c_int, answer: &mut [u8; 4]| {
            let empty: [&[u8]; 3] = [&[], &[], &[]];
            let kind = Kind::MemoryFile;
            let reply = client::exchange(socket, kind, empty, Some(fd), answer).ok()?;
            (reply.header.error == 0 && reply.len == 4).then(|| u32::from_ne_bytes(*answer))
        };
        let number = if let Some(object) = mine {
            send(object.fd, &mut answer)
        } else {
            let fd = object::open_mapped(vma)?;
            // The daemon takes nothing else: a disk could make it wait.
            let number = if sys::is_memory(fd) {
                send(fd, &mut answer)
            } else {
                None
            };
            sys::close(fd);
            number
        };
        self.files.push(File {
            serial,
            dev: vma.dev,
            inode: vma.inode,
            number: number.unwrap_or(REFUSED),
        });
        number
    }
}
