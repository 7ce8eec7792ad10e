//! The rules of `docs/fast-lane.md` that can be switched off, under the same numbers.

/// Declares the rules of a model: their numbers, names and texts.
macro_rules! rules {
    ($($number:literal $name:ident $text:literal;)* $(plus $also:ident $what:literal;)?) => {
        /// The rules in force.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct Rules {
            $(#[doc = $text] pub $name: bool,)*
            $(#[doc = $what] pub $also: bool,)?
        }

        impl Rules {
            /// All rules.
            pub const fn all() -> Self {
                Self { $($name: true,)* $($also: false,)? }
            }

            /// All but one.
            pub fn without(name: &str) -> Self {
                let rules = Self { $($name: stringify!($name) != name,)* $($also: false,)? };
                assert_ne!(rules, Self::all(), "there is no rule {name}");
                rules
            }
        }

        /// Number in the document, name, and text.
        pub const RULES: &[(&str, &str, &str)] = &[$(($number, stringify!($name), $text),)*];
    };
}
pub(crate) use rules;

rules! {
    "1a" whole_stamp "a write is accepted only at exactly the stamp that it follows; equal counts are not enough";
    "2a" leader_stamps "a leader's record has a stamp of the leader's own, also if it executes a client's op";
    "2b" epoch_in_stamps "a leader's stamp contains its epoch";
    "4a" all_members "a fast write is done when all members have accepted it";
    "4b" one_epoch "only answers of one epoch are added up";
    "5" answered_once "an op that was done is answered, not executed again";
    "6" settled_first "a leader answers an op when every member holds the writes that it follows";
    "7" settled_reads "a read is answered from settled writes";
    "8" fresh_stamp "before a leader reconciles others it gives its own copy a new stamp";
    "9" both_ranges "reconciliation covers the leader's unsettled writes, and the member's";
    "10a" ids_go_along "reconciliation sends the ids of the ops that it sends";
    "10b" ids_are_struck "reconciliation removes the ids of ops that it undoes";
    "10c" settled_ids "an op's id is removed only if the leader has not executed it, not if its list lacks it";
    "11" records_follow "a record is applied only at the stamp that it follows";
    "12" members_report "a member reports writes that stay unsettled to the leader";
    "13a" epochs_fence "a replica accepts no message of another epoch than its own";
    "13b" fence_survives "a replica's fencing survives its process";
    "14a" lease_wait "a view opens when every replica that it excludes has acknowledged it or has no lease any more";
    "14b" lease_for_view "a lost lease is granted again only with the view of that moment";
    "15a" last_view_leads "only members of the last open view may lead";
    "15b" opened_counts "a view that was formed and did not open entitles no replica";
    "15c" longest_leads "of the replicas that may lead the one with the greatest (epoch, sequence) does";
    "16a" all_lists "levelling uses the lists of all members, not only the leader's";
    "16b" level_unsettled "unsettled writes are reconciled before the view opens";
    "17a" incarnations "a replica that lost power is not a member any more";
    "17b" lives_in_forming "a member that loses power before the view opens makes the view void";
    "18" wait_for_memory "without any member's memory a view begins only when all members are present";
    "19" losses_reported "an fsync fails if memory was lost since the view in which the write was answered";
    "20a" unstable_listed "data that was not known to be stable when a member left is listed for it";
    "20b" stable_needs_all "data is stable when every member has synced it";
    "20c" learners_sync "data is stable when every learner has synced it, too";
    "21" own_list "a returning replica fetches the data that it did not know to be stable itself";
    "22a" learners_listed "a write that a learner has not accepted stays listed for it";
    "22b" fenced_promotion "data that is listed for a new member when all are fenced is sent before the view opens";
    "23" synced_promotion "a new member has synced the data that it received before the view opens";
    "24" lists_handed_on "a new member receives the lists of the replicas that are still away";
    plus bare_counts "Not a rule: stamps are counts only, as version numbers are.";
}
