//! A register: the smallest model that separates good histories from bad ones.

use super::*;

enum Register {
    Write(u32),
    /// Writes two digits, one after the other.
    WriteTwice(u32, u32),
    Read(u32),
}

struct Model;

impl super::Model for Model {
    type State = u32;
    type Action = Register;

    fn parts(&self, action: &Register) -> usize {
        if matches!(action, Register::WriteTwice(..)) { 2 } else { 1 }
    }

    fn only_looks(&self, action: &Register) -> bool {
        matches!(action, Register::Read(_))
    }

    fn steps(&self, state: &u32, action: &Register, part: usize) -> Vec<u32> {
        match action {
            Register::Write(value) => vec![*value],
            Register::WriteTwice(first, second) => vec![[*first, *second][part]],
            Register::Read(value) if value == state => vec![*state],
            Register::Read(_) => Vec::new(),
        }
    }

    fn explain(&self, state: &u32, _: &Register, _: usize) -> String {
        format!("the register has {state}")
    }
}

use Register::*;

fn operation(number: usize, action: Register, opens: Moment, closes: Moment) -> Operation<Register> {
    Operation { call: CallNumber(number), action, opens, closes: Some(closes), required: true }
}

fn pending(number: usize, action: Register, opens: Moment) -> Operation<Register> {
    Operation { call: CallNumber(number), action, opens, closes: None, required: false }
}

fn run(operations: Vec<Operation<Register>>) -> Result<Vec<usize>, Stuck> {
    linearize(&Model, 0, &operations, &[]).map(|order| order.into_iter().map(|call| call.0).collect())
}

#[test]
fn a_read_during_a_write_may_see_either() {
    for seen in [0, 7] {
        let order = run(vec![operation(0, Write(7), 0, 10), operation(1, Read(seen), 2, 3)]);
        assert!(order.is_ok(), "{seen}: {order:?}");
    }
}

#[test]
fn a_read_after_a_write_sees_it_and_nothing_that_was_overwritten() {
    let order = run(vec![operation(0, Write(7), 0, 1), operation(1, Write(8), 2, 3), operation(2, Read(7), 4, 5)]);
    let stuck = order.unwrap_err();
    assert_eq!(stuck.placed, [CallNumber(0), CallNumber(1)]);
    assert_eq!(stuck.next, Some((CallNumber(2), "the register has 8".into())));
}

#[test]
fn a_later_read_is_not_older_than_an_earlier_one() {
    let operations =
        |second| vec![operation(0, Write(7), 0, 100), operation(1, Read(7), 1, 2), operation(2, Read(second), 3, 4)];
    assert!(run(operations(7)).is_ok());
    assert!(run(operations(0)).is_err());
}

#[test]
fn an_operation_without_an_answer_may_happen_late_or_never() {
    assert_eq!(run(vec![pending(0, Write(7), 0), operation(1, Read(0), 5, 6)]), Ok(vec![1]));
    let late = run(vec![pending(0, Write(7), 0), operation(1, Read(0), 5, 6), operation(2, Read(7), 8, 9)]);
    assert_eq!(late, Ok(vec![1, 0, 2]));
    assert!(run(vec![operation(1, Read(7), 0, 1), pending(0, Write(7), 2)]).is_err(), "not before it was asked for");
}

#[test]
fn an_operation_does_not_happen_after_its_window() {
    let ghost = Operation { closes: Some(4), ..pending(0, Write(7), 0) };
    assert!(run(vec![ghost, operation(1, Read(0), 5, 6), operation(2, Read(7), 8, 9)]).is_err());
}

#[test]
fn parts_of_an_operation_keep_their_order_and_others_come_between() {
    let between =
        |a, b| vec![operation(0, WriteTwice(1, 2), 0, 9), operation(1, Read(a), 1, 2), operation(2, Read(b), 3, 4)];
    assert!(run(between(1, 2)).is_ok());
    assert!(run(between(2, 1)).is_err());
}

#[test]
fn many_at_once_are_found_in_the_one_order_that_fits() {
    let mut operations: Vec<_> = (1..=8).map(|n| operation(n as usize, Write(n), 0, 1000)).collect();
    operations.extend((1..=8).rev().map(|n| {
        let at = 100 - 10 * u64::from(n);
        operation(20 + n as usize, Read(n), at, at + 1)
    }));
    let order = run(operations).unwrap();
    let writes: Vec<_> = order.into_iter().filter(|n| *n <= 8).collect();
    assert_eq!(writes, [8, 7, 6, 5, 4, 3, 2, 1]);
}
