//! Fast writes, as in `translators/replicate/fast.rs` and `distribute/bytes.rs`: an overwrite is sent to all members at
//! once, and the inode's leader receives its request beside it. If one member answers anything but `Written`, the write
//! is sent to the shard's leader under the same id. The real client waits for all answers first.

use super::{Call, Client, Receiver, Stage, Step, VOLUME, write_shard};
use crate::cluster::coordinator::RING;
use hekate_proto::*;

/// Largest fast write, in bytes.
const FAST_BYTES_MAX: usize = 64 << 10;

/// A leader's permission: the next write to the shard may follow this one as a fast write.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allowed {
    epoch: Epoch,
    term: u64,
    stamp: Stamp,
}

/// A write in flight to all members. The call's own request is the one to the inode's leader.
#[derive(Debug)]
pub(super) struct Flight {
    shard: ShardId,
    left: usize,
    failed: bool,
    after: Allowed,
    /// The request to the shard's leader, in case not all members accept the write.
    write: (Stage, Receiver, Request),
    wrote_answer: Option<Result<Reply>>,
}

impl Client {
    /// Asks for permission with a write to one shard that is within the file's size.
    pub(super) fn wish_for_fast_lane(&mut self) {
        let Some(call) = &mut self.call else { return };
        let Op::Data { op: DataOp::Write { inode, offset, data, .. } } = &call.op else { return };
        let within = self.shapes.get(inode).is_some_and(|shape| offset + data.len() as u64 <= shape.size);
        if let Op::Data { op: DataOp::WriteShard { fast, bytes, .. } } = &mut call.request.op {
            let is_one = bytes.len() == data.len();
            *fast = (call.durable || self.loose) && within && is_one && bytes.len() <= FAST_BYTES_MAX;
        }
    }

    pub(super) fn begin_flight(&mut self) -> Option<Step> {
        let call = self.call.as_ref()?;
        let Op::Data { op: DataOp::WriteShard { data, index, offset, bytes, fast: true, .. } } = &call.request.op
        else {
            return None;
        };
        let Stage::WriteShards { layout, next } = &call.stage else { return None };
        let shard = ShardId { volume: VOLUME, data: *data, index: *index };
        let partition = shard.position().partition(self.views.len() as u32);
        let view = &self.views[partition.0 as usize];
        let allowed = self.allowed.remove(&shard)?;
        if allowed.epoch != view.epoch || !view.whole || view.members.len() < 2 {
            return None;
        }
        let Allowed { epoch, term, stamp: follow } = allowed;
        let (data, index, offset, bytes, settled) = (*data, *index, *offset, bytes.clone(), true);
        let op = Op::Data { op: DataOp::FastWrite { data, index, offset, bytes, follow, settled, term } };
        let to = |brick: BrickId| {
            let target = Target::Replica { ring: RING, partition, epoch, brick };
            (brick, Request { target, op: op.clone(), ..call.request.clone() })
        };
        let requests: Vec<(BrickId, Request)> = view.members.iter().map(|member| to(member.brick)).collect();
        let stamp = Stamp { count: follow.count + 1, session: self.session, op: call.request.op_id };
        let (stage, receiver, mut wrote) = write_shard(&call.op, layout.clone(), *next);
        if let Op::Data { op: DataOp::Wrote { fast, .. } } = &mut wrote {
            *fast = true;
        }
        let (left, after, op_id) = (requests.len(), Allowed { stamp, ..allowed }, self.next_op());
        if let Receiver::Leader(home) = receiver {
            self.changes(home);
        }
        let call = self.call.as_mut()?;
        let request = Request { op_id, op: wrote, ..call.request.clone() };
        let write = (
            std::mem::replace(&mut call.stage, stage),
            std::mem::replace(&mut call.receiver, receiver),
            std::mem::replace(&mut call.request, request),
        );
        call.flight = Some(Flight { shard, left, failed: false, after, write, wrote_answer: None });
        match self.outstanding() {
            Step::Send(brick, request) => Some(Step::SendAll(requests, brick, request)),
            other => Some(other),
        }
    }

    /// True if a fast write is in flight.
    pub fn is_fast(&self) -> bool {
        self.call.as_ref().is_some_and(|call| call.flight.is_some())
    }

    fn flight(&mut self) -> Option<&mut Flight> {
        self.call.as_mut()?.flight.as_mut()
    }

    /// Handles a member's answer. None: another answer is still missing.
    pub fn fast_answered(&mut self, reply: Result<Reply>) -> Option<Step> {
        let flight = self.flight()?;
        match reply {
            Ok(Reply::Written { stamp, .. }) if stamp == flight.after.stamp => {
                flight.left = flight.left.saturating_sub(1)
            }
            _ => flight.failed = true,
        }
        self.land()
    }

    /// Handles the answer of the inode's leader.
    pub fn wrote_answered(&mut self, reply: Result<Reply>) -> Option<Step> {
        self.flight()?.wrote_answer = Some(reply);
        self.land()
    }

    /// The connection is lost: the members may or may not have accepted the write.
    pub fn lose_flight(&mut self) {
        if let Some(flight) = self.flight() {
            flight.failed = true;
        }
    }

    pub(super) fn tell_again(&mut self) -> Step {
        if let Some(landed) = self.land() {
            return landed;
        }
        match self.outstanding() {
            Step::Send(brick, request) => Step::WroteAgain(brick, request),
            other => other,
        }
    }

    fn land(&mut self) -> Option<Step> {
        let call = self.call.as_mut()?;
        call.flight.take_if(|flight| flight.wrote_answer.is_some() && (flight.failed || flight.left == 0)).map(
            |flight| {
                let Flight { shard, failed, after, write, wrote_answer, .. } = flight;
                if failed {
                    return self.goes_to_the_leader(write);
                }
                self.allowed.insert(shard, after);
                self.answered(wrote_answer.unwrap_or_else(|| {
                    Err(Error::bug("a write that all members accepted and the inode's leader did not"))
                }))
            },
        )
    }

    /// Sends the write to the shard's leader, which finds out its outcome; the inode's leader receives its request
    /// after that.
    fn goes_to_the_leader(&mut self, (stage, receiver, request): (Stage, Receiver, Request)) -> Step {
        if let Some(call) = &mut self.call {
            let request = Request { retry: true, ..request };
            let (op, durable) = (call.op.clone(), call.durable);
            *call = Call { op, durable, stage, receiver, request, flight: None };
        }
        self.outstanding()
    }

    pub(super) fn note_allowed(&mut self, reply: &Result<Reply>) {
        let Some(Call { request, .. }) = &self.call else { return };
        let Op::Data { op: DataOp::WriteShard { data, index, .. } } = &request.op else { return };
        let Target::Partition { epoch, .. } = request.target else { return };
        let shard = ShardId { volume: VOLUME, data: *data, index: *index };
        self.allowed.remove(&shard);
        if let Ok(Reply::Written { stamp, fast: Some(term) }) = reply {
            self.allowed.insert(shard, Allowed { epoch, term: *term, stamp: *stamp });
        }
    }
}
