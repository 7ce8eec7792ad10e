//! `hekate partition`.

use clap::Subcommand;
use hekate_proto::{PartitionNumber, RingId};
use std::fmt;
use std::str::FromStr;

#[derive(Subcommand, Debug)]
pub enum Partition {
    /// All partitions: leader, members, replicas that are being healed, and what each waits for.
    #[command(after_help = "Example: hekate partition list --waiting")]
    List {
        /// Only those that wait.
        #[arg(long)]
        waiting: bool,
    },
    /// One partition, with the position of each replica's log.
    #[command(after_help = "Example: hekate partition show 1/5")]
    Show {
        /// Its ring and number, as `hekate partition list` shows them.
        partition: PartitionName,
    },
    /// Let a replica lead that may lack acknowledged changes: use it only if the replicas that have them are lost for
    /// good.
    #[command(after_help = FORCE_EXAMPLES)]
    Force {
        /// Its ring and number, as `hekate partition list` shows them.
        partition: PartitionName,
        /// The replica's brick, of the server that answers: its directory, or the first digits of its id.
        #[arg(long, value_name = "BRICK")]
        brick: String,
        /// The partition once more: changes that the replica lacks are lost.
        #[arg(long, value_name = "RING/NUMBER")]
        confirm: Option<PartitionName>,
    },
}

const FORCE_EXAMPLES: &str = "\
A partition waits for the last members that have all changes, and is not served meanwhile. If their disks are lost for good:
  hekate partition list --waiting
  hekate partition show 1/5            the most advanced replica has the highest epoch, then the highest sequence
  hekate partition force 1/5 --brick /srv/disk3 --confirm 1/5

Changes that the replica lacks are lost, and counted as a loss: the next fsync of a client that wrote there fails once. A
member that returns before the forced view has begun takes precedence; one that returns later is healed from the forced
replica.

Exit status: 0 forced; 64 there is nothing to force, or that replica cannot lead; 77 not permitted; 69 no server.";

/// Written `1/5`: ring 1, partition 5.
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
