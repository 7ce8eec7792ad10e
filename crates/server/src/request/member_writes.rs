//! What a client asks of one member of a view, past its leader: fast writes, and steps of raw ones.

use crate::hosting::node::Node;
use crate::request::batch::check_epoch;
use crate::request::raw::Locked;
use crate::request::sessions::Session;
use crate::request::syncer::Needs;
use hekate_proto::map::Mode;
use hekate_proto::*;
use hekate_replica::{Address, Ask};

impl Node {
    /// This member answers for itself alone, once it is in its journal here, on stable storage if that was asked for. No lease is needed: who is in another view refuses.
    pub(crate) fn member_op(
        &self,
        session: &Session,
        request: &Request,
        (ring_id, to, epoch): (RingId, Address, Epoch),
        needs: &mut Needs,
    ) -> Result<Reply> {
        let volume = self.volume(session.volume)?;
        let (data, index, is_write) = match (&request.op, volume.mode) {
            (Op::Data { op: DataOp::FastWrite { data, index, .. } }, Mode::Hsr) => (data, index, true),
            (Op::Data { op: DataOp::RawWrite { data, index, step } }, mode) if mode.is_raw() => {
                (data, index, matches!(step, RawStep::Write { .. }))
            }
            (Op::Data { op: DataOp::FastWrite { .. } | DataOp::RawWrite { .. } }, mode) => {
                return Err(Error::Denied {
                    what: format!("such writes past the log to a volume of mode {}", mode.text()),
                });
            }
            _ => return Err(Error::Protocol { what: "a replica is asked for writes past the log only".into() }),
        };
        let is_raw = volume.mode.is_raw();
        if volume.ring != ring_id || is_write && is_raw && !request.durable {
            return Err(Error::Denied {
                what: "writes past the log are of the volume's ring, raw ones durable".into(),
            });
        }
        let shard = ShardId { volume: session.volume, data: *data, index: *index };
        let ring = self.ring(ring_id)?;
        check_epoch(ring.view(to.partition)?.epoch, epoch)?;
        let Some(hosted) = ring.replica(to) else {
            return Err(Error::Unavailable { what: format!("brick {} is not here", to.brick.text()) });
        };
        if let Op::Data { op: DataOp::RawWrite { step, .. } } = &request.op
            && let Locked::Here(answer) = self.raw_locks.step((to, shard), (session.id, request.op_id), step)
        {
            return answer;
        }
        let mut ask = Ask::new(ring_id, ring.count(), session.volume, (session.id, request.op_id), Self::clock());
        ask.loose = !request.durable;
        let reply = self.ask_replica(&ring, to, &ask, &request.op)?;
        // AFR's changelog is not synced, as there.
        if is_write && request.durable {
            needs.journal(&hosted.brick, hosted.brick.end());
            needs.shards(&hosted.brick, &[shard]);
        }
        Ok(match reply {
            Reply::Done if is_write && self.raw_locks.is_wanted((to, shard), session.id) => {
                Reply::Waiting { op_id: request.op_id }
            }
            reply => reply,
        })
    }
}
