//! Named bugs that the feature `planted` compiles in, so that a test can show that a checker finds them, and safety
//! mechanisms that a benchmark switches off to measure their cost. At most one of them is active in a thread. Without
//! the feature `is_planted` is a constant `false`, and the compiler removes what it guards.

use std::fmt;
use std::str::FromStr;

macro_rules! bugs {
    ($($(#[doc = $text:literal])+ $variant:ident = $name:literal,)+) => {
        /// A planted bug: what the code does wrong while it is active. Its name is the variant's in kebab case.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Bug {
            $($(#[doc = $text])+ $variant,)+
        }

        impl Bug {
            /// All of them, in the order of their declaration.
            pub const ALL: &[Bug] = &[$(Bug::$variant),+];

            /// The name by which environment variables and documents call it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Bug::$variant => $name,)+
                }
            }

            /// True if it is a safety mechanism that `bench/pieces.sh` switches off, and no bug that the simulator
            /// looks for.
            pub const fn is_piece(self) -> bool {
                matches!(self, Bug::SyncOff | Bug::ChecksumsOff | Bug::TimesOff)
            }
        }
    };
}

bugs! {
    /// A record is made while another session still has a pledge about what it changes.
    RecallNotAwaited = "recall-not-awaited",
    /// A read shows times that another session may have moved under a grant.
    GrantNotRecalledForRead = "grant-not-recalled-for-read",
    /// An inode is changed while a session may write its file under a grant.
    GrantNotRecalledForChange = "grant-not-recalled-for-change",
    /// A session that ends, or does not return a grant, is taken to have written nothing under it.
    LostGrantForgotten = "lost-grant-forgotten",
    /// A new leader takes a session's word for a mapping right that was given to others.
    PassedRightKept = "passed-right-kept",
    /// A client looks at attributes before it has told of what it wrote under a grant.
    GrantedWriteNotTold = "granted-write-not-told",
    /// A client returns a grant without the time of its last write.
    GrantReturnedWithoutReport = "grant-returned-without-report",
    /// A client returns a grant without the end of the file that it has moved.
    EndNotReported = "end-not-reported",
    /// The end of a file is taken to be the recorded one though a session that could move it has ended.
    LostEndNotAsked = "lost-end-not-asked",
    /// A new leader takes the recorded end of a file for its end though a session may have moved it.
    FoundEndNotAsked = "found-end-not-asked",
    /// The shards are asked for the end of a file while a session may still move it.
    EndAskedTooEarly = "end-asked-too-early",
    /// The end that is reported for an earlier layout is taken.
    OldEndTaken = "old-end-taken",
    /// The record with which closing begins gives members the leader's length of the shard.
    RestampCutsShard = "restamp-cuts-shard",
    /// A shard says where it ends though a member may lack its last write.
    OpenShardAsked = "open-shard-asked",
    /// A client writes under a grant that is not its any more.
    GrantUsedAfterRecall = "grant-used-after-recall",
    /// A pledge is given about something whose pledges are being recalled.
    PledgeGivenDuringRecall = "pledge-given-during-recall",
    /// A new leader makes changes before sessions have forgotten the pledges of the leader before it.
    EarlierPledgesNotAwaited = "earlier-pledges-not-awaited",
    /// Pledges are renewed for a session that does not return what is recalled.
    OverdueSessionRenewed = "overdue-session-renewed",
    /// A client answers by a pledge whose lease is over.
    PledgeOutlivesLease = "pledge-outlives-lease",
    /// A client keeps the pledges of a leader when another one has begun.
    PledgeOutlivesLeader = "pledge-outlives-leader",
    /// A client returns a recalled pledge and goes on answering by it.
    RecallIgnored = "recall-ignored",
    /// A client takes a pledge that was recalled before the reply that carries it arrived.
    RecalledPledgeTaken = "recalled-pledge-taken",
    /// A client keeps its pledges about what its own op changes.
    OwnChangeKeepsPledges = "own-change-keeps-pledges",
    /// A client takes pledges about what an op of its own is changing.
    PledgeTakenDuringOwnChange = "pledge-taken-during-own-change",
    /// A client answers that a name is missing from a directory that it made, though another has made names there.
    ForeignNameOverlooked = "foreign-name-overlooked",
    /// A client answers by the list of a directory whose names have changed since.
    OldListAnswered = "old-list-answered",
    /// A late return of an older pledge drops a newer one about the same at the leader.
    OlderReturnDropsPledge = "older-return-drops-pledge",
    /// A new leader renews times, and sessions keep the pledged older ones.
    RenewedTimesNotRecalled = "renewed-times-not-recalled",
    /// A leader that does not serve yet makes records without recalling pledges.
    PledgesIgnoredBeforeServing = "pledges-ignored-before-serving",
    /// A client answers by the content of a small file as it was before its attributes changed.
    OldContentAnswered = "old-content-answered",
    /// A client takes what it read behind a change, though something has touched it since.
    TouchedReadTaken = "touched-read-taken",
    /// A name is held for a rename of another partition while sessions have a pledge about it or its directory.
    HeldNamePledged = "held-name-pledged",
    /// Bytes of a shard change while sessions have a pledge about it.
    ShardChangedUnderPledge = "shard-changed-under-pledge",
    /// A shard that is open for fast writes is pledged.
    OpenShardPledged = "open-shard-pledged",
    /// A client keeps the bytes of a file that it writes.
    OwnWriteKeepsShards = "own-write-keeps-shards",
    /// A client answers by shards of a layout that the file does not have any more.
    OldLayoutAnswered = "old-layout-answered",
    /// The leader answers an op before the members hold its record.
    AnsweredBeforeReplication = "answered-before-replication",
    /// A resent op is executed again instead of being answered from its session's slot.
    RetryExecuted = "retry-executed",
    /// A leg that is already in the log is executed again.
    LegExecutedTwice = "leg-executed-twice",
    /// An op does not wait for the names that a prepared rename holds.
    HoldIgnored = "hold-ignored",
    /// A member reports a record that arrived out of order as held, though the records before it are missing.
    GapAcknowledged = "gap-acknowledged",
    /// A sync round waits for the leader's own brick only.
    SyncOfLeaderOnly = "sync-of-leader-only",
    /// Legs are sent before the records that they follow are on stable storage.
    LegsSentBeforeSync = "legs-sent-before-sync",
    /// A new leader does not resume the intents that it finds in its index.
    IntentsNotRecovered = "intents-not-recovered",
    /// A truncate changes the size and leaves the bytes in shards.
    TruncateKeepsShards = "truncate-keeps-shards",
    /// `Wrote` is accepted for a layout version that is no longer current.
    StaleLayoutAccepted = "stale-layout-accepted",
    /// A write sets the file's size to its own end, also if the file is longer.
    WriteShrinksFile = "write-shrinks-file",
    /// A directory's entry count does not change when a name is removed.
    RemovedNameCounted = "removed-name-counted",
    /// A directory that is renamed into another one keeps its old parent.
    ParentNotUpdated = "parent-not-updated",
    /// A new leader does not fetch the records that a member has and it lacks.
    LongerLogIgnored = "longer-log-ignored",
    /// A new name that rests on another partition is answered and shown before it is on stable storage.
    NameShownBeforeSync = "name-shown-before-sync",
    /// A forgetful view does not increase the partition's loss counter, so an fsync after it does not fail.
    LossNotCounted = "loss-not-counted",
    /// A replica whose incarnation has changed stays a member.
    IncarnationIgnored = "incarnation-ignored",
    /// The members of a view that never began decide who may lead the next one.
    UnopenedViewEntitles = "unopened-view-entitles",
    /// A learner becomes a member before it has all records and blocks.
    LearnerPromotedEarly = "learner-promoted-early",
    /// A message of another epoch is accepted.
    EpochIgnored = "epoch-ignored",
    /// The leader sends a learner the records after the learner's last one without comparing the epochs of that record.
    LearnerTailTrusted = "learner-tail-trusted",
    /// A heal compares a learner's index entries and leaves the blocks of its shards as they are.
    DifferingShardsKept = "differing-shards-kept",
    /// The leader treats a failed sync of its own brick as a successful one.
    SyncFailureIgnored = "sync-failure-ignored",
    /// A learner that lost blocks to a power cut is fed the log and not compared.
    LostBlocksIgnored = "lost-blocks-ignored",
    /// The leader answers ops before its view has begun.
    AnsweredBeforeOpening = "answered-before-opening",
    /// A member accepts a fast write that was granted in another term of the leader.
    TermIgnored = "term-ignored",
    /// A member does not add a fast write to its shard's list of unsettled writes.
    FastWriteNotListed = "fast-write-not-listed",
    /// A fast write is accepted if its shard's stamp has at least the expected count, whichever write made it.
    StampsNotCompared = "stamps-not-compared",
    /// A leader returns bytes of a fast write that may be on its own brick only.
    UnsettledWriteRead = "unsettled-write-read",
    /// A record changes a shard that is open for fast writes.
    OpenShardChanged = "open-shard-changed",
    /// Closing a shard does not change its stamp, so fast writes under the old one are still accepted.
    ClosedWithoutRestamp = "closed-without-restamp",
    /// A reconciled fast write is not put into its session's slot, so a retry through the leader executes it again.
    ReconciledWriteForgotten = "reconciled-write-forgotten",
    /// An op is executed though its session's slot has the answer of a newer one.
    SupersededOpExecuted = "superseded-op-executed",
    /// A partition accepts a leg from the leader of an earlier view.
    LegOfOldViewAccepted = "leg-of-old-view-accepted",
    /// A sync round covers the journal and leaves out the shards' data files.
    SyncWithoutShards = "sync-without-shards",
    /// A new leader does not reconcile the unsettled writes that its members list.
    ListedWritesIgnored = "listed-writes-ignored",
    /// A server serves for twice the length of its lease.
    LeaseTooLong = "lease-too-long",
    /// A brick that was restored from an older copy of its disk is served.
    OlderCopyServed = "older-copy-served",
    /// A replica that the last view left out may lead the next one with its old log.
    ExcludedReplicaLeads = "excluded-replica-leads",
    /// A view that lacks a placed replica, or has learners, allows fast writes.
    FastWritesInPartialView = "fast-writes-in-partial-view",
    /// A block that does not match its checksum is returned.
    ChecksumMismatchReturned = "checksum-mismatch-returned",
    /// Times of a fast write are answered before any record marks the file as being written.
    WritingMarkerMissing = "writing-marker-missing",
    /// A new leader does not renew the times of files that were being written.
    TimesNotRenewed = "times-not-renewed",
    /// A learner becomes a member before the bytes that it was given are on stable storage.
    LearnerNotSynced = "learner-not-synced",
    /// A shard with writes that were not synced is closed before they are on stable storage.
    ClosedBeforeSync = "closed-before-sync",
    /// A learner that may lack writes that were not synced is fed the log and not compared.
    LooseWritesIgnored = "loose-writes-ignored",
    /// A forgetful view keeps all its members, though they may differ in writes that were not synced.
    ForgetfulViewKeepsMembers = "forgetful-view-keeps-members",
    /// Fast writes may stay unsynced before all members hold the record that says that there are such writes.
    LooseWritesUnmarked = "loose-writes-unmarked",
    /// A write of which a later truncate cut nothing is refused, so its client writes the bytes again.
    WriteRepeatedAfterTruncate = "write-repeated-after-truncate",
    /// A replica that no member can feed becomes a member again before the view that left it out has begun.
    UnfedReplicaReturns = "unfed-replica-returns",
    /// A leader that cannot fetch the records that it lacks continues to lead.
    UnfedLeaderStays = "unfed-leader-stays",
    /// After a retry, the reply to a batch's last executed op also counts for the op after it, which is not sent again.
    RepliesShifted = "replies-shifted",
    /// A client does not fetch the map again after a server has refused its view.
    MapNotFetchedAgain = "map-not-fetched-again",
    /// A client sends an op again under another op id.
    RetryUnderNewId = "retry-under-new-id",
    /// A client takes a fast write as done once all members have replied, also if some of them refused it.
    RefusedFastWriteDone = "refused-fast-write-done",
    /// A fast write that some member refused is sent to the leader under another op id.
    FastWriteRepeatedUnderNewId = "fast-write-repeated-under-new-id",
    /// Bytes that were read under a layout that has changed meanwhile are returned.
    ChangedLayoutRead = "changed-layout-read",
    /// A write under a layout that has changed meanwhile is acknowledged.
    ChangedLayoutWritten = "changed-layout-written",
    /// All changes of a client have one slot.
    SlotShared = "slot-shared",
    /// A server answers though its lease has expired.
    LeaseIgnored = "lease-ignored",
    /// A session expires as soon as it has no connection.
    SessionExpiresAtOnce = "session-expires-at-once",
    /// A server deletes a session's slots when a connection of the session ends.
    SlotsForgotten = "slots-forgotten",
    /// A new leader gets the sessions that its server knows already, without a reading of the records.
    SessionsNotRead = "sessions-not-read",
    /// A flush of a vDisk does not ask whether another process has taken the vDisk.
    DiskFlushUnconfirmed = "disk-flush-unconfirmed",
    /// A process that opens a vDisk does not replace the state of its head before it reads the log.
    DiskStateKept = "disk-state-kept",
    /// A process that opens a vDisk appends with the opening number of the one before.
    DiskOpeningShared = "disk-opening-shared",
    /// A durable change of a vDisk does not make the changes before it durable.
    DiskDurableAlone = "disk-durable-alone",
    /// A vDisk takes a sync that reports a loss as done.
    DiskLossIgnored = "disk-loss-ignored",

    /// No sync of a file reaches the disk.
    SyncOff = "sync-off",
    /// Blocks and journal records have no checksums.
    ChecksumsOff = "checksums-off",
    /// A client does not report a fast write to the inode's leader, so size and times do not follow.
    TimesOff = "times-off",
}

impl fmt::Display for Bug {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.name())
    }
}

/// The error for a name that no planted bug has.
#[derive(Debug, PartialEq, Eq)]
pub struct UnknownBug(String);

impl fmt::Display for UnknownBug {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Bug::ALL.iter().map(|bug| bug.name()).collect();
        write!(to, "no planted bug is named {:?}; use one of: {}", self.0, names.join(", "))
    }
}

impl std::error::Error for UnknownBug {}

impl FromStr for Bug {
    type Err = UnknownBug;

    /// # Errors
    ///
    /// [`UnknownBug`] if no bug has this name.
    fn from_str(name: &str) -> Result<Self, UnknownBug> {
        Bug::ALL.iter().copied().find(|bug| bug.name() == name).ok_or_else(|| UnknownBug(name.into()))
    }
}

#[cfg(feature = "planted")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = std::cell::Cell::new(of_process());
}

/// The bug that `HEKATE_PLANTED` plants in every thread of the process.
#[cfg(feature = "planted")]
fn of_process() -> Option<Bug> {
    static BUG: std::sync::OnceLock<Option<Bug>> = std::sync::OnceLock::new();
    *BUG.get_or_init(|| of_environment("HEKATE_PLANTED"))
}

/// The bug that an environment variable names; none if it is unset or empty.
///
/// # Panics
/// If no bug has that name: the run would test or measure the unchanged program.
#[cfg(feature = "planted")]
pub fn of_environment(variable: &str) -> Option<Bug> {
    let name = std::env::var(variable).ok().filter(|name| !name.is_empty())?;
    let bug = name.parse();
    assert!(bug.is_ok(), "{variable}: {}", UnknownBug(name));
    bug.ok()
}

/// Makes `bug` the planted bug of this thread, in place of the one before. `None`: the thread has none.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.with(|planted| planted.set(bug));
}

/// True if this bug is planted in this thread.
#[cfg(feature = "planted")]
pub fn is_planted(bug: Bug) -> bool {
    PLANTED.with(|planted| planted.get() == Some(bug))
}

/// Always false: bugs are compiled in with the feature `planted` only.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn is_planted(_bug: Bug) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `SyncFailureIgnored` -> `sync-failure-ignored`.
    fn kebab_case(variant: &str) -> String {
        let dashed = variant.chars().flat_map(|c| c.is_uppercase().then_some('-').into_iter().chain([c]));
        dashed.collect::<String>().to_lowercase().trim_start_matches('-').into()
    }

    #[test]
    fn a_name_is_the_variant_in_kebab_case_and_parses_to_it() {
        for bug in Bug::ALL {
            assert_eq!(bug.name(), kebab_case(&format!("{bug:?}")));
            assert_eq!(bug.name().parse(), Ok(*bug));
        }
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_names_that_exist() {
        let refused = "23".parse::<Bug>().unwrap_err().to_string();
        assert!(refused.contains("\"23\"") && refused.contains("sync-failure-ignored"), "{refused}");
    }
}
