//! `hekate partition`.

use clap::Subcommand;
use hekate_proto::{PartitionNumber, RingId};
use std::fmt;
use std::str::FromStr;

#[derive(Subcommand, Debug)]
pub enum Partition {
    /// All partitions: who leads, who is a member, who is being healed, and whom they wait for.
    #[command(after_help = "Example: hekate partition list --waiting")]
    List {
        /// Only those that wait.
        #[arg(long)]
        waiting: bool,
    },
    /// One partition, with how far each of its replicas is.
    #[command(after_help = "Example: hekate partition show 1/5")]
    Show {
        /// Its ring and number, as `hekate partition list` shows them.
        partition: PartitionName,
    },
    /// Let a replica lead, though it may lack what was acknowledged: those who have everything are gone for good.
    #[command(after_help = FORCE_EXAMPLES)]
    Force {
        /// Its ring and number, as `hekate partition list` shows them.
        partition: PartitionName,
        /// The replica's brick, of the server that answers: its directory, or the first digits of its id.
        #[arg(long, value_name = "BRICK")]
        brick: String,
        /// The partition once more, since what that replica lacks is lost.
        #[arg(long, value_name = "RING/NUMBER")]
        confirm: Option<PartitionName>,
    },
}

const FORCE_EXAMPLES: &str = "\
A partition waits for its last members with everything, and serves nobody meanwhile. If their disks are gone for good:
  hekate partition list --waiting
  hekate partition show 1/5            which replica is farthest: the greatest epoch, then the greatest sequence
  hekate partition force 1/5 --brick /srv/disk3 --confirm 1/5

What that replica lacks is lost, and counted as a loss: an fsync of whoever wrote it fails once. A member that comes back
before the forced view has begun takes precedence; one that comes later is healed from the forced replica.

Exit status: 0 forced; 64 there is nothing to force, or that replica cannot lead; 77 not permitted; 69 no server.";

/// As `1/5`: ring 1, partition 5.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionName {
    pub ring: RingId,
    pub number: PartitionNumber,
}

impl FromStr for PartitionName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('/').and_then(|(ring, number)| Some((ring.parse().ok()?, number.parse().ok()?)));
        let (ring, number) = parsed.ok_or("a partition is named by its ring and number, as 1/5")?;
        Ok(Self { ring: RingId(ring), number: PartitionNumber(number) })
    }
}

impl fmt::Display for PartitionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ring, self.number)
    }
}
