//! Requests that a client sends to each member of a view instead of its leader: fast writes (mode `hsr`). The steps of
//! raw writes (modes `afr` and `fast-path`) go on to `raw`.

use crate::hosting::hosted_ring::HostedRing;
use crate::hosting::node::Node;
use crate::request::partition_op::check_epoch;
use crate::request::sessions::Session;
use crate::request::syncer::Needs;
use hekate_brick::Brick;
use hekate_proto::map::Mode;
use hekate_proto::*;
use hekate_replica::{Address, Ask};
use std::sync::Arc;

/// One member of a partition's view, in the view that the client knows.
#[derive(Debug, Clone, Copy)]
pub struct MemberTarget {
    pub ring: RingId,
    pub address: Address,
    pub epoch: Epoch,
}

/// A member that this server hosts, in the view that the client knows.
pub(crate) struct HostedMember {
    ring: Arc<HostedRing>,
    pub(crate) address: Address,
    brick: Arc<Brick>,
}

impl HostedMember {
    /// Makes the answer wait until the member's journal and the shard are on its stable storage.
    pub(crate) fn sync(&self, shard: ShardId, needs: &mut Needs) {
        needs.journal(&self.brick, self.brick.end());
        needs.shards(&self.brick, &[shard]);
    }
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
        match (&request.op, self.volume(session.volume)?.mode) {
            (Op::Data { op: DataOp::FastWrite { data, index, .. } }, Mode::Hsr) => {
                let member = self.member(session, target)?;
                let reply = self.ask_member(session, request, &member)?;
                if request.durable {
                    member.sync(ShardId { volume: session.volume, data: *data, index: *index }, needs);
                }
                Ok(reply)
            }
            (Op::Data { op: DataOp::RawWrite { .. } }, mode) if mode.is_raw() => {
                self.raw_step(session, request, target, needs)
            }
            (Op::Data { op: DataOp::FastWrite { .. } | DataOp::RawWrite { .. } }, mode) => Err(Error::Denied {
                what: format!("mode {} of the volume has no such write to single members", mode.text()),
            }),
            _ => Err(Error::Protocol { what: "a request to a member is neither a fast nor a raw write".into() }),
        }
    }

    /// The member that a request names.
    ///
    /// # Errors
    ///
    /// `StaleView`, `Denied` and `Unavailable` as of [`Node::member_op`].
    pub(crate) fn member(&self, session: &Session, target: MemberTarget) -> Result<HostedMember> {
        if self.volume(session.volume)?.ring != target.ring {
            return Err(Error::Denied { what: "a write to a member names another ring than the volume's".into() });
        }
        let ring = self.ring(target.ring)?;
        let address = target.address;
        check_epoch(ring.view(address.partition)?.epoch, target.epoch)?;
        let Some(hosted) = ring.replica(address) else {
            return Err(Error::Unavailable {
                what: format!("brick {} is not open at this server", address.brick.text()),
            });
        };
        let brick = hosted.brick.clone();
        Ok(HostedMember { ring, address, brick })
    }

    /// Has the member's replica execute the op.
    pub(crate) fn ask_member(&self, session: &Session, request: &Request, member: &HostedMember) -> Result<Reply> {
        let HostedMember { ring, address, .. } = member;
        let ids = (session.id, request.op_id);
        let mut ask = Ask::new(ring.ring, ring.count(), session.volume, ids, Self::clock());
        ask.loose = !request.durable;
        self.ask_replica(ring, *address, &ask, &request.op)
    }
}
