//! The rules of `docs/fast-lane.md` that can be switched off, under the same numbers.

/// Declares the rules of a model once: their numbers, names and what each says.
macro_rules! rules {
    ($($number:literal $name:ident $text:literal;)* $(plus $also:ident $what:literal;)?) => {
        /// Rules in force.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct Rules {
            $(#[doc = $text] pub $name: bool,)*
            $(#[doc = $what] pub $also: bool,)?
        }

        impl Rules {
            /// The protocol as it is to be built.
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

        /// Number in the document, name here, and what it says.
        pub const RULES: &[(&str, &str, &str)] = &[$(($number, stringify!($name), $text),)*];
    };
}
pub(crate) use rules;

rules! {
    "1a" whole_stamp "a write is taken only at exactly the stamp that it follows; counts alone are not enough";
    "2a" leader_stamps "a leader's record has a stamp of the leader's own, also if it carries out a client's op";
    "2b" epoch_in_stamps "a leader's stamp names its epoch";
    "4a" all_members "a fast write is done when all members have taken it";
    "4b" one_epoch "answers of one epoch only are added up";
    "5" answered_once "an op that was done is answered, not done again";
    "6" settled_first "a leader answers an op when every member holds what it follows from";
    "7" settled_reads "a read is answered from what is settled";
    "8" fresh_stamp "before a leader makes others even it gives its own copy a fresh stamp";
    "9" both_ranges "evening covers what the leader has unsettled, and what the member has";
    "10a" ids_go_along "evening brings the ids of the ops that it brings";
    "10b" ids_are_struck "evening strikes the ids of ops that it undoes";
    "10c" settled_ids "an op is struck only if the leader has not done it, not if it merely lists it no more";
    "11" records_follow "a record is taken only at the stamp that it follows";
    "12" members_report "a member tells the leader of what stays unsettled";
    "13a" epochs_fence "a replica takes nothing of another epoch than its own";
    "13b" fence_survives "that a replica was fenced outlives its process";
    "14a" lease_wait "a view opens when whoever it leaves out has acknowledged it or has no lease any more";
    "14b" lease_for_view "a lease that was lost comes back only with the view of that moment";
    "15a" last_view_leads "only members of the last view that opened may lead";
    "15b" opened_counts "a view that was formed and did not open entitles nobody";
    "15c" longest_leads "of those who may lead the one with the greatest (epoch, sequence) does";
    "16a" all_lists "levelling goes by the lists of all members, not of the leader alone";
    "16b" level_unsettled "what is unsettled is made even before the view opens";
    "17a" incarnations "who lost power is no member any more";
    "17b" lives_in_forming "who loses power before the view opens makes it void";
    "18" wait_for_memory "without any member's memory a view begins only when all are there";
    "19" losses_told "an fsync fails if memory was lost since the view in which the write was answered";
    "20a" unstable_listed "what was not known stable when a member left is listed for it";
    "20b" stable_needs_all "stable is what every member has synced";
    "20c" learners_sync "stable is what every learner has synced, too";
    "21" own_list "what a returning replica itself has not known stable is fetched";
    "22a" learners_listed "what a learner has not taken stays listed for it";
    "22b" fenced_promotion "what is listed for a new member when all are fenced is brought before the view opens";
    "23" synced_promotion "a new member has synced what it was given before the view opens";
    "24" lists_handed_on "a new member is given the lists of those who are still away";
    plus bare_counts "No rule: stamps are nothing but counts, as version numbers are.";
}
