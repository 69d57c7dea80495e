//! What happens, and what comes of it.

use roceline_engine::Nanos;

use super::frame::{Arrived, FrameId, Frames};
use super::{FlowId, NodeId, Point, Sim, SwitchId};

/// How long the QPs of a flow stay after its end: what is still on its way finds them.
const LINGER: Nanos = Nanos::from_millis(1);

/// What happens at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// The last bit of the frame that a link sends has left.
    Left(u32),
    /// Frames that a link's impairments kept back go on.
    Release(u32),
    /// A frame is at the end of a link.
    Arrives { link: u32, frame: FrameId },
    /// A node has a timer that is due.
    Timer(u32),
    /// A NIC has taken the first frame of its buffer in.
    TakenIn(u32),
    /// A switch has a timer that is due.
    SwitchTimer(u32),
    /// A flow begins.
    Start(u32),
    /// A flow posts no more.
    Stop(u32),
    /// A flow's QPs go.
    Close(u32),
}

impl Sim {
    /// The next event, if it is not after `limit`.
    pub(super) fn step(&mut self, limit: Nanos) -> bool {
        let Some((at, event)) = self.events.pop(limit) else {
            return false;
        };
        self.now = at;
        self.happen(event);
        true
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Left(link) => {
                let at = link as usize;
                self.packet_events += 1;
                if let Some(frame) = self.links[at].left() {
                    if let Some(recorder) = self.links[at].recorded[0] {
                        self.note(recorder, at, frame, true);
                    }
                    self.impair(at, frame);
                }
                self.serve(self.links[at].from);
            }
            Event::Release(link) => {
                let link = link as usize;
                self.links[link].alarm.came();
                self.release(link);
            }
            Event::Arrives { link, frame } => {
                self.packet_events += 1;
                let at = link as usize;
                if let Some(recorder) = self.links[at].recorded[1] {
                    self.note(recorder, at, frame, false);
                }
                match self.links[at].to {
                    Point::Node(node) => self.arrive_at_node(node, frame),
                    Point::Port(switch, port) => self.arrive_at_switch(switch, port, frame),
                }
            }
            Event::Timer(node) => {
                let at = node as usize;
                self.nodes[at].alarm.came();
                self.nodes[at].advance(self.now, &mut self.shared);
                self.serve(Point::Node(at));
            }
            Event::TakenIn(node) => self.take_in(node as NodeId),
            Event::SwitchTimer(switch) => {
                let switch = switch as usize;
                self.switches[switch].alarm.came();
                self.advance_switch(switch);
            }
            Event::Start(flow) => self.start(flow as FlowId),
            Event::Stop(flow) => self.shared.flows[flow as FlowId].stopped = true,
            Event::Close(flow) => self.close(flow as FlowId),
        }
        while let Some(flow) = self.shared.ended.pop() {
            let close = Event::Close(flow as u32);
            self.events.push(self.now + LINGER, close);
            self.follow(flow);
        }
    }

    /// A flow begins: its QPs are made and connected, and the first messages posted.
    pub(super) fn start(&mut self, id: FlowId) {
        let config = self.shared.flows[id].config;
        let ends = [config.from, config.to];
        let depth = config.depth.max(1);
        let qps = [
            self.nodes[ends[0]].create_qp(depth),
            self.nodes[ends[1]].create_qp(1),
        ];
        self.shared.flows[id].qps = Some(qps);
        for (own, other) in [(0, 1), (1, 0)] {
            let peer = (ends[other], self.nodes[ends[other]].rkey(), qps[other]);
            let node = &mut self.nodes[ends[own]];
            node.connect(qps[own], id, peer, &config.attr, self.now, &mut self.shared);
        }
        for _ in 0..depth {
            self.nodes[config.from].post(id, &mut self.shared.flows);
        }
        self.serve(Point::Node(config.from));
    }

    /// What waited for a flow may begin.
    fn follow(&mut self, ended: FlowId) {
        for id in self.followers.ended(ended) {
            let config = &mut self.shared.flows[id].config;
            config.start = config.start.max(self.now);
            let (start, stop) = (config.start, config.stop);
            self.events.push(start, Event::Start(id as u32));
            if let Some(stop) = stop {
                self.events.push(stop.max(start), Event::Stop(id as u32));
            }
        }
    }

    /// The QPs of a flow go.
    fn close(&mut self, id: FlowId) {
        let flow = &mut self.shared.flows[id];
        let ends = [flow.config.from, flow.config.to];
        for (qp, node) in flow.qps.take().into_iter().flatten().zip(ends) {
            self.nodes[node].destroy_qp(qp);
        }
    }

    /// Somebody may have something to send, or a new deadline.
    pub(super) fn serve(&mut self, point: Point) {
        match point {
            Point::Node(node) => self.serve_node(node),
            Point::Port(switch, port) => {
                self.serve_port(switch, port);
                self.serve_switch(switch);
            }
        }
    }

    fn arrive_at_node(&mut self, id: NodeId, frame: FrameId) {
        let (node, frames) = (&mut self.nodes[id], &mut self.shared.frames);
        match &mut node.ingress {
            Some(ingress) if !Frames::is_pause(frame) => {
                if let Some(at) = ingress.push(frame, frames, self.now) {
                    self.events.push(at, Event::TakenIn(id as u32));
                }
            }
            _ => match frames.take(frame) {
                Arrived::Roce(frame) => node.receive(&frame, self.now, &mut self.shared),
                Arrived::Pause(pause) => node.on_pause(&pause, self.now),
            },
        }
        self.serve_node(id);
    }

    /// A slow NIC gets to see the first frame that waits.
    fn take_in(&mut self, id: NodeId) {
        let (node, frames) = (&mut self.nodes[id], &mut self.shared.frames);
        let first = node.ingress.as_mut().and_then(|i| i.pop(frames, self.now));
        if let Some((frame, next)) = first {
            if let Arrived::Roce(frame) = frames.take(frame) {
                node.receive(&frame, self.now, &mut self.shared);
            }
            if let Some(at) = next {
                self.events.push(at, Event::TakenIn(id as u32));
            }
        }
        self.serve_node(id);
    }

    fn arrive_at_switch(&mut self, id: SwitchId, port: u16, frame: FrameId) {
        let (switch, frames) = (&mut self.switches[id], &mut self.shared.frames);
        let egress = match frames.pause(frame) {
            Some(pause) => {
                switch.on_pause(port, pause, self.now);
                frames.drop(frame);
                Some(port)
            }
            None => switch.receive(port, frame, frames, self.now),
        };
        if let Some(egress) = egress {
            self.serve_port(id, egress);
        }
        self.serve_switch(id);
    }

    /// What time alone changes in a switch.
    fn advance_switch(&mut self, id: SwitchId) {
        let mut ended = std::mem::take(&mut self.ended);
        self.switches[id]
            .switch
            .advance(self.now, |port| ended.push(port));
        for port in ended.drain(..) {
            self.serve_port(id, port);
        }
        self.ended = ended;
        self.serve_switch(id);
    }

    /// A switch may have pause frames to send, or a new deadline.
    fn serve_switch(&mut self, id: SwitchId) {
        while let Some((port, pause)) = self.switches[id].switch.next_pause(self.now) {
            if let Some(link) = self.switches[id].links[usize::from(port)] {
                let frame = self.shared.frames.insert_pause(pause);
                self.links[link].push_pause(frame);
                self.serve_port(id, port);
            }
        }
        let switch = &mut self.switches[id];
        let due = switch.switch.next_deadline();
        if let Some(at) = switch.alarm.set(due, self.now) {
            self.events.push(at, Event::SwitchTimer(id as u32));
        }
    }

    /// Starts the next frame of a port whose line is free.
    fn serve_port(&mut self, id: SwitchId, port: u16) {
        let switch = &mut self.switches[id];
        let Some(at) = switch.links[usize::from(port)] else {
            return;
        };
        let (link, frames) = (&mut self.links[at], &mut self.shared.frames);
        if link.is_busy() {
            return;
        }
        let next = link.next_pause();
        if let Some(frame) = next.or_else(|| switch.transmit(port, frames, self.now)) {
            let left = link.send(frame, frames, self.now);
            self.events.push(left, Event::Left(at as u32));
        }
    }

    fn serve_node(&mut self, id: NodeId) {
        let Some(at) = self.nodes[id].uplink else {
            return;
        };
        let (node, link) = (&mut self.nodes[id], &mut self.links[at]);
        let shared = &mut self.shared;
        if let Some(ingress) = &mut node.ingress {
            while let Some(pause) = ingress.next_pause(self.now) {
                link.push_pause(shared.frames.insert_pause(pause));
            }
        }
        loop {
            for frame in shared.sent.drain(..) {
                link.push(frame, &mut shared.frames);
            }
            if link.is_busy() {
                break;
            }
            let next = link.next_pause();
            if let Some(frame) = next.or_else(|| link.next(node.paused(), &shared.frames)) {
                let left = link.send(frame, &shared.frames, self.now);
                self.events.push(left, Event::Left(at as u32));
                break;
            }
            // Requests are asked for one at a time when the link has nothing else: none grows stale in a queue
            // while a NAK is on its way.
            if !node.emit(self.now, shared) {
                break;
            }
        }
        let due = node.next_deadline();
        if let Some(at) = node.alarm.set(due, self.now) {
            self.events.push(at, Event::Timer(id as u32));
        }
    }

    /// A frame is on the wire: its impairments decide what becomes of it.
    fn impair(&mut self, link: usize, frame: FrameId) {
        if self.links[link].is_clean() {
            return self.arrive(link, frame);
        }
        let mut through = std::mem::take(&mut self.through);
        self.links[link].offer(frame, &mut self.shared.frames, self.now, &mut through);
        for frame in through.drain(..) {
            self.arrive(link, frame);
        }
        self.through = through;
        self.release(link);
    }

    fn release(&mut self, link: usize) {
        while let Some(frame) = self.links[link].release(self.now) {
            self.arrive(link, frame);
        }
        let due = self.links[link].next_release();
        if let Some(at) = self.links[link].alarm.set(due, self.now) {
            self.events.push(at, Event::Release(link as u32));
        }
    }

    fn arrive(&mut self, link: usize, frame: FrameId) {
        let at = self.now + self.links[link].config().delay;
        let link = link as u32;
        self.events.push(at, Event::Arrives { link, frame });
    }
}
