//! Requests to one member of a view, past its leader: fast writes (mode `hsr`) and the steps of raw writes (mode
//! `afr`).

use crate::hosting::node::Node;
use crate::request::partition_op::check_epoch;
use crate::request::raw::{Claim, Handled, ReplicaShard};
use crate::request::sessions::Session;
use crate::request::syncer::Needs;
use hekate_proto::map::Mode;
use hekate_proto::*;
use hekate_replica::{Address, Ask};

/// One member of a partition's view, in the view that the client knows.
#[derive(Debug, Clone, Copy)]
pub struct MemberTarget {
    pub ring: RingId,
    pub address: Address,
    pub epoch: Epoch,
}

impl Node {
    /// Carries out a member's part of a write. The answer means that it is in this member's journal and, for a durable
    /// request, on its stable storage; the client counts the members. No lease is needed: a member that is in another
    /// view refuses the epoch.
    ///
    /// # Errors
    ///
    /// `StaleView` if this server's view has another epoch, `Denied` if the volume's mode has no such write,
    /// `Unavailable` if the brick is not here; those of the replica.
    pub(crate) fn member_op(
        &self,
        session: &Session,
        request: &Request,
        target: MemberTarget,
        needs: &mut Needs,
    ) -> Result<Reply> {
        let volume = self.volume(session.volume)?;
        let MemberWrite { shard, is_write } = member_write(session.volume, &request.op, volume.mode)?;
        if volume.ring != target.ring || is_write && volume.mode.is_raw() && !request.durable {
            return Err(Error::Denied {
                what: "a write past the log goes to the volume's ring, and a raw one is durable".into(),
            });
        }
        let ring = self.ring(target.ring)?;
        let to = target.address;
        check_epoch(ring.view(to.partition)?.epoch, target.epoch)?;
        let Some(hosted) = ring.replica(to) else {
            return Err(Error::Unavailable { what: format!("brick {} is not here", to.brick.text()) });
        };
        let at = ReplicaShard { replica: to, shard };
        let claim = Claim { session: session.id, op_id: request.op_id };
        if let Op::Data { op: DataOp::RawWrite { step, .. } } = &request.op
            && let Handled::Here(answer) = self.raw_locks.step(at, claim, step)
        {
            return answer;
        }
        let ids = (session.id, request.op_id);
        let mut ask = Ask::new(ring.ring, ring.count(), session.volume, ids, Self::clock());
        ask.loose = !request.durable;
        let reply = self.ask_replica(&ring, to, &ask, &request.op)?;
        // The steps that mark and clear a raw write are not synced: AFR does not sync its changelog either.
        if is_write && request.durable {
            needs.journal(&hosted.brick, hosted.brick.end());
            needs.shards(&hosted.brick, &[shard]);
        }
        Ok(match reply {
            Reply::Done if is_write && self.raw_locks.is_wanted(at, session.id) => {
                Reply::Waiting { op_id: request.op_id }
            }
            reply => reply,
        })
    }
}

/// What a request to a member is about.
struct MemberWrite {
    shard: ShardId,
    /// It writes bytes, as opposed to a step before or after them.
    is_write: bool,
}

fn member_write(volume: VolumeId, op: &Op, mode: Mode) -> Result<MemberWrite> {
    let (data, index, is_write) = match (op, mode) {
        (Op::Data { op: DataOp::FastWrite { data, index, .. } }, Mode::Hsr) => (data, index, true),
        (Op::Data { op: DataOp::RawWrite { data, index, step } }, mode) if mode.is_raw() => {
            (data, index, matches!(step, RawStep::Write { .. }))
        }
        (Op::Data { op: DataOp::FastWrite { .. } | DataOp::RawWrite { .. } }, mode) => {
            return Err(Error::Denied {
                what: format!("a volume of mode {} accepts no such write past the log", mode.text()),
            });
        }
        _ => return Err(Error::Protocol { what: "a request to a member is a fast or a raw write".into() }),
    };
    Ok(MemberWrite { shard: ShardId { volume, data: *data, index: *index }, is_write })
}
