//! A file system that runs out of inodes: records that need a new data file are refused in time, all others are taken.

use super::*;

fn refused(bricks: &[Brick], number: u64) -> String {
    let full = commit(bricks, true, blocks(number, 1)).unwrap_err();
    assert!(matches!(full, Error::NoSpace { .. }), "{full}");
    full.to_string()
}

fn drop_file(bricks: &[Brick], number: u64) {
    commit(bricks, false, vec![Change::Delete { key: key(number) }, Change::DropShard { shard: shard(number) }])
        .unwrap();
}

/// Another user makes files until no inode is left.
fn take_all_inodes(pages: &Mutex<Pages>) {
    let mut pages = pages.lock();
    for number in 0.. {
        if pages.inodes.is_none_or(|inodes| pages.names.len() as u64 >= inodes) {
            return;
        }
        pages.names.insert(format!("other user {number}"));
    }
}

/// Two bricks with 200 shards that only their journals have: more than there are spare files.
fn without_inodes_for_200_files() -> (Arc<Mutex<Pages>>, Vec<Brick>) {
    let (pages, bricks) = bricks_with(1 << 30, Some(2000));
    for number in 0..200 {
        commit(&bricks, true, blocks(number, 1)).unwrap();
    }
    take_all_inodes(&pages);
    (pages, bricks)
}

#[test]
fn a_write_that_needs_an_inode_is_refused_before_a_checkpoint_would_lack_it() {
    let (pages, bricks) = bricks_with(1 << 30, Some(800));
    let files = fill(&bricks, 0, |number| blocks(number, 1));
    assert!(files > 20, "{files} files, twice");
    settle(&bricks);
    // Each checkpoint makes the files that were promised, and allows an eighth of the remaining inodes to be promised;
    // in the end none.
    let mut files = files;
    loop {
        let more = fill(&bricks, files, |number| blocks(number, 1));
        files += more;
        if more == 0 {
            break;
        }
        settle(&bricks);
    }
    let why = refused(&bricks, u64::MAX);
    for word in ["on brick", "inodes", "df -i"] {
        assert!(why.contains(word), "{word}: {why}");
    }
    // Names need no inode, nor do writes of data files that exist.
    commit(&bricks, true, vec![Change::Put { key: key(u64::MAX), value: Bytes::from_static(b"a small file") }])
        .unwrap();
    let bytes = Bytes::from(vec![9; BLOCK_BYTES]);
    let run = BlockRun { first: 1, checksums: vec![block_checksum(shard(0), 1, &bytes)] };
    let record = bricks[0].shard(RING, shard(0)).unwrap().unwrap();
    let stamp = Stamp { count: record.stamp.count + 1, ..record.stamp };
    let record = ShardRecord { stamp, length: 2 * BLOCK_BYTES as u32, home_blocks: 2, ..record };
    commit(&bricks, true, vec![Change::WriteBlocks { shard: shard(0), record, run, bytes }]).unwrap();
    settle(&bricks);
    (0..files).for_each(|number| drop_file(&bricks, number));
    settle(&bricks);
    settle(&bricks);
    assert!(pages.lock().names.len() < 200, "{} files are left", pages.lock().names.len());
    assert!(fill(&bricks, 0, |number| blocks(number, 1)) > 20, "there is room again");
    settle(&bricks);
}

#[test]
fn a_checkpoint_has_the_files_of_the_reserve_when_another_user_takes_all_inodes() {
    let (pages, bricks) = bricks_with(1 << 30, Some(2000));
    for number in 0..30 {
        commit(&bricks, true, blocks(number, 1)).unwrap();
    }
    take_all_inodes(&pages);
    settle(&bricks);
    assert!(bricks.iter().all(|brick| brick.status().unwrap().reserve.files < 32), "released");
    refused(&bricks, 99);
    pages.lock().names.retain(|name| !name.starts_with("other user"));
    settle(&bricks);
    assert!(bricks.iter().all(|brick| brick.status().unwrap().reserve.files == 32), "restored");
    commit(&bricks, true, blocks(99, 1)).unwrap();
}

#[test]
fn deleting_the_shards_without_inodes_lets_the_checkpoint_go_on() {
    let (_, bricks) = without_inodes_for_200_files();
    for brick in &bricks {
        let error = brick.checkpoint().unwrap_err();
        assert!(matches!(error, Error::NoSpace { .. }), "{error}");
        assert!(brick.stalled().unwrap().contains("No space left"), "{:?}", brick.stalled());
        assert_eq!(brick.read_shard(RING, shard(7), 0, 9).unwrap(), vec![7; 9], "it reads");
    }
    refused(&bricks, 999);
    (0..200).for_each(|number| drop_file(&bricks, number));
    bricks.iter().for_each(|brick| brick.checkpoint().unwrap());
    settle(&bricks);
    assert_eq!(bricks[0].shard(RING, shard(150)).unwrap(), None);
}

#[test]
fn a_brick_whose_journal_finds_no_inodes_opens_and_goes_on_when_there_are_some() {
    let (pages, bricks) = without_inodes_for_200_files();
    let storage = bricks[0].disk.storage.clone();
    assert!(bricks[0].checkpoint().is_err());
    drop(bricks);
    for is_power_cut in [false, true] {
        let (brick, _) = Brick::open_on(storage.clone(), &identity(1), Incarnation(2), is_power_cut).unwrap();
        assert!(brick.checkpoint().is_err());
        assert_eq!(brick.status().unwrap().poisoned, None);
        assert_eq!(brick.read_shard(RING, shard(7), 0, 9).unwrap(), vec![7; 9]);
    }
    pages.lock().names.retain(|name| !name.starts_with("other user"));
    let (brick, _) = Brick::open_on(storage, &identity(1), Incarnation(3), true).unwrap();
    brick.checkpoint().unwrap();
    assert_eq!((brick.stalled(), brick.has_covered_recovery()), (None, true));
    assert_eq!(brick.read_shard(RING, shard(199), 0, 9).unwrap(), vec![199; 9]);
}
