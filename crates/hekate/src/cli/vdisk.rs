//! Options of the commands for vDisks.

use clap::{Args, Subcommand, ValueEnum};

/// vDisks: block devices that live in a volume.
#[derive(Subcommand, Debug)]
pub enum Vdisk {
    /// Make an empty vDisk. It takes space as it is written.
    #[command(after_help = CREATE_EXAMPLES)]
    Create(VdiskCreate),
    /// All vDisks of a volume, and who has them open.
    #[command(after_help = "Example: hekate vdisk list photos")]
    List {
        /// The volume.
        volume: String,
    },
    /// A vDisk with its snapshots, its space, and how it stands.
    #[command(after_help = "Example: hekate vdisk show photos web1")]
    Show {
        /// The volume.
        volume: String,
        /// The vDisk.
        name: String,
    },
    /// Make a snapshot of a vDisk, at once, also while it is written.
    #[command(after_help = "Example: hekate vdisk snapshot photos web1 before-upgrade --label ticket=4711")]
    Snapshot {
        /// The volume.
        volume: String,
        /// The vDisk.
        name: String,
        /// The name of the snapshot.
        snapshot: String,
        /// A label: KEY=VALUE; may be given again.
        #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
        labels: Vec<(String, String)>,
    },
    /// Make a vDisk with the content of a snapshot or a template, at once: no byte is copied.
    #[command(after_help = CLONE_EXAMPLES)]
    Clone {
        /// The volume.
        volume: String,
        /// The snapshot, as VDISK@SNAPSHOT, or a template.
        source: String,
        /// The name of the new vDisk.
        name: String,
        /// A label: KEY=VALUE; may be given again.
        #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
        labels: Vec<(String, String)>,
    },
    /// Make a vDisk a template, which is never written again and of which clones are made.
    #[command(after_help = "Example: hekate vdisk template photos debian12")]
    Template {
        /// The volume.
        volume: String,
        /// The vDisk.
        name: String,
    },
    /// Make a vDisk what it was when a snapshot was made. What came later is gone.
    #[command(after_help = "Example: hekate vdisk rollback photos web1 before-upgrade --yes")]
    Rollback(VdiskRollback),
    /// Change the size of a vDisk. Clients see it with their next connection.
    #[command(after_help = RESIZE_EXAMPLES)]
    Resize {
        /// The volume.
        volume: String,
        /// The vDisk.
        name: String,
        /// The new size, as 20G or 512M.
        #[arg(value_parser = size)]
        size: u64,
        /// Of a smaller size: what lies beyond it may go.
        #[arg(long)]
        shrink: bool,
    },
    /// Give a vDisk another name.
    #[command(after_help = "Example: hekate vdisk rename photos web1 web1-old")]
    Rename {
        /// The volume.
        volume: String,
        /// The vDisk.
        name: String,
        /// The new name.
        to: String,
    },
    /// Give back the space of blocks that were overwritten, and of snapshots that were deleted.
    #[command(after_help = "Example: hekate vdisk scrub photos web1 --limit 50M")]
    Scrub {
        /// The volume.
        volume: String,
        /// The vDisk.
        name: String,
        /// Bytes to copy in a second at most, as 50M.
        #[arg(long, value_name = "BYTES", value_parser = size)]
        limit: Option<u64>,
    },
    /// Delete a vDisk with its snapshots, or one snapshot. Clones keep what they need.
    #[command(after_help = DELETE_EXAMPLES)]
    Delete(VdiskDelete),
    /// Take a vDisk away from the process that has it open, which can change nothing of it from then on. What that process
    /// has not flushed may be lost, and its clients get errors.
    #[command(after_help = "Example: hekate vdisk steal photos web1 --yes")]
    Steal {
        /// The volume.
        volume: String,
        /// The vDisk.
        name: String,
        /// Do not ask: the other process's clients lose it.
        #[arg(long)]
        yes: bool,
    },
    /// Allow writes again to a vDisk of which changes were lost that no flush had covered.
    #[command(after_help = "Example: hekate vdisk resume photos web1")]
    Resume {
        /// The volume.
        volume: String,
        /// The vDisk.
        name: String,
    },
}

const CREATE_EXAMPLES: &str = "\
Examples:
  hekate vdisk create photos web1 20G
  hekate vdisk create photos scratch 100G --durability async     faster; what is not flushed can be lost with a process";

const CLONE_EXAMPLES: &str = "\
Examples:
  hekate vdisk clone photos web1@before-upgrade web1-test
  hekate vdisk clone photos debian12 web2                        debian12 is a template";

const RESIZE_EXAMPLES: &str = "\
Examples:
  hekate vdisk resize photos web1 40G
  hekate vdisk resize photos web1 10G --shrink";

const DELETE_EXAMPLES: &str = "\
Examples:
  hekate vdisk delete photos web1@before-upgrade
  hekate vdisk delete photos web1 --yes";

/// When a write is acknowledged.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum VdiskDurability {
    /// When all copies have it.
    Replicated,
    /// When the door has it. At most 64 MiB wait; a flush waits for all of them.
    Async,
}

#[derive(Args, Debug)]
pub struct VdiskCreate {
    /// The volume.
    pub volume: String,
    /// The name of the vDisk.
    pub name: String,
    /// The size, as 20G or 512M: a multiple of 512 bytes, at most 64 TiB.
    #[arg(value_parser = size)]
    pub size: u64,
    /// When a write is acknowledged. A flush is honest in both.
    #[arg(long, value_enum, default_value = "replicated")]
    pub durability: VdiskDurability,
    /// A label: KEY=VALUE; may be given again.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub labels: Vec<(String, String)>,
}

#[derive(Args, Debug)]
pub struct VdiskRollback {
    /// The volume.
    pub volume: String,
    /// The vDisk.
    pub name: String,
    /// The snapshot.
    pub snapshot: String,
    /// Do not ask: what came after the snapshot may go.
    #[arg(long)]
    pub yes: bool,
}

#[derive(Args, Debug)]
pub struct VdiskDelete {
    /// The volume.
    pub volume: String,
    /// The vDisk, or a snapshot as VDISK@SNAPSHOT.
    pub name: String,
    /// Do not ask: the vDisk and its snapshots may go.
    #[arg(long)]
    pub yes: bool,
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("say KEY=VALUE")?;
    if key.is_empty() || key.len() > 64 || value.len() > 256 {
        return Err("a label's key has 1 to 64 bytes, its value at most 256".into());
    }
    Ok((key.into(), value.into()))
}

/// A number of bytes, with K, M, G or T for powers of 1024.
fn size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 10),
        Some((at, 'M' | 'm')) => (&text[..at], 20),
        Some((at, 'G' | 'g')) => (&text[..at], 30),
        Some((at, 'T' | 't')) => (&text[..at], 40),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| "say a number of bytes, as 20G or 512M".to_string())?;
    number.checked_mul(1 << shift).ok_or_else(|| "that is more than any vDisk has".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!((size("512"), size("20G"), size("1t")), (Ok(512), Ok(20 << 30), Ok(1 << 40)));
        for wrong in ["", "G", "-1", "1.5G", "20GB", "99999999999T"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
