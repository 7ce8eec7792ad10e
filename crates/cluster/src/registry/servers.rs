//! Servers and their bricks.

use super::{Registry, brick_key, text};
use crate::coordinator::LEASE;
use crate::records::*;
use hekate_proto::*;

impl Registry {
    /// All servers, with the first one even if it has never run.
    pub fn servers(&self) -> Result<Vec<ServerInfo>> {
        let mut servers: Vec<ServerInfo> = self.list("/servers/")?;
        if servers.iter().all(|info| info.server != FIRST_SERVER) {
            servers.insert(0, unheard(FIRST_SERVER));
        }
        Ok(servers)
    }

    /// All bricks, ordered by server and directory.
    pub fn bricks(&self) -> Result<Vec<BrickInfo>> {
        let mut bricks: Vec<BrickInfo> = self.list("/bricks/")?;
        bricks.sort_by(|a, b| (a.server, &a.directory).cmp(&(b.server, &b.directory)));
        Ok(bricks)
    }

    /// The bricks of this server.
    pub fn own_bricks(&self) -> Result<Vec<BrickInfo>> {
        Ok(self.bricks()?.into_iter().filter(|brick| brick.server == self.server).collect())
    }

    /// Assigns a number to a server that is about to join.
    pub fn number_server(&self) -> Result<ServerId> {
        // The first server has its number without being counted.
        let number = u32::try_from(self.count("servers")?).ok().and_then(|count| count.checked_add(FIRST_SERVER.0));
        number.map(ServerId).ok_or_else(|| Error::NoSpace { what: "all numbers of servers are used".into() })
    }

    /// Records a numbered server with its bricks, in pools that exist.
    ///
    /// # Errors
    /// `Invalid` if a pool does not exist, or if the server or a brick has joined already.
    pub fn join(&self, server: &ServerInfo, bricks: &[BrickInfo]) -> Result<()> {
        let key = server_key(server.server);
        let mut expect = vec![(key.clone(), None)];
        let mut writes = vec![(key, text(server)?)];
        for brick in bricks {
            let pool = format!("/pools/{}", brick.pool);
            let record = self.coordinator.get(&pool)?;
            let missing = || Error::invalid(format!("there is no pool called {}", brick.pool));
            expect.push((pool, Some(record.ok_or_else(missing)?)));
            expect.push((brick_key(brick.brick), None));
            writes.push((brick_key(brick.brick), text(brick)?));
        }
        let expect: Vec<_> = expect.iter().map(|(key, value)| (&key[..], value.as_deref())).collect();
        let writes: Vec<_> = writes.iter().map(|(key, value)| (&key[..], Some(&value[..]))).collect();
        match self.coordinator.transact(&expect, &writes)? {
            true => Ok(()),
            false => Err(Error::invalid(format!("server {} or one of its bricks has joined already", server.server))),
        }
    }

    /// Records one more brick of this server, in a pool that exists.
    ///
    /// # Errors
    /// `Invalid` if the pool does not exist, `Exists` if the brick is recorded.
    pub fn add_brick(&self, brick: &BrickInfo) -> Result<()> {
        let pool = format!("/pools/{}", brick.pool);
        let record = self.coordinator.get(&pool)?;
        let missing = || Error::invalid(format!("there is no pool called {}", brick.pool));
        let (record, key) = (record.ok_or_else(missing)?, brick_key(brick.brick));
        let expect = [(&pool[..], Some(&record[..])), (&key, None)];
        match self.coordinator.transact(&expect, &[(&key, Some(&text(brick)?))])? {
            true => Ok(()),
            false => Err(Error::Exists),
        }
    }

    /// Removes the record of a brick, unless a ring uses it. Returns the rings that use it; nothing is changed if
    /// there are any.
    pub fn remove_brick(&self, brick: BrickId) -> Result<Vec<RingInfo>> {
        loop {
            // The counter is read first: making a ring changes it.
            let counter = self.coordinator.get(super::rings::COUNTER)?;
            let mut on = self.rings()?;
            on.retain(|ring| ring.has(brick));
            if !on.is_empty() {
                return Ok(on);
            }
            let expect = [(super::rings::COUNTER, counter.as_deref())];
            if self.coordinator.transact(&expect, &[(&brick_key(brick), None)])? {
                return Ok(on);
            }
        }
    }

    /// Records a new brick of this server that should hold everything that an old one should. Returns the number of
    /// partitions.
    ///
    /// # Errors
    /// `Invalid` if the new brick's server has another copy of such a partition, or if the old brick should hold
    /// nothing.
    pub fn replace_brick(&self, old: &BrickInfo, new: &BrickInfo) -> Result<usize> {
        loop {
            let (pool, key) = (format!("/pools/{}", new.pool), brick_key(new.brick));
            let mut expect = vec![(pool.clone(), self.coordinator.get(&pool)?), (key.clone(), None)];
            let mut writes = vec![(key, text(new)?)];
            let (mut count, bricks) = (0, self.bricks()?);
            for (key, record) in self.coordinator.list("/rings/")? {
                let mut ring: RingInfo = super::parse(&key, &record)?;
                let places = (0..ring.views.len() as u32).map(|number| ring.placed(PartitionNumber(number)));
                let mut beside = places.filter(|all| all.contains(&old.brick)).flatten();
                let is_there =
                    |brick: BrickId| bricks.iter().any(|info| info.brick == brick && info.server == new.server);
                if ring.domain == Domain::Server && beside.any(|brick| brick != old.brick && is_there(brick)) {
                    let what = format!("server {} has the other copy of some of its partitions", new.server);
                    return Err(Error::invalid(format!("{what}; replace it by a brick of another server")));
                }
                let moved = ring.replace(old.brick, new.brick);
                if moved > 0 {
                    count += moved;
                    writes.push((key.clone(), text(&ring)?));
                    expect.push((key, Some(record)));
                }
            }
            if count == 0 {
                let directory = &old.directory;
                let what =
                    format!("brick {directory} holds no partition; remove it with `hekate brick remove {directory}`");
                return Err(Error::invalid(what));
            }
            let expect: Vec<_> = expect.iter().map(|(key, value)| (&key[..], value.as_deref())).collect();
            let writes: Vec<_> = writes.iter().map(|(key, value)| (&key[..], Some(&value[..]))).collect();
            if self.coordinator.transact(&expect, &writes)? {
                return Ok(count);
            }
        }
    }

    /// Renews this server's lease and reports its bricks that have stopped. The lease expires after [`LEASE`].
    pub fn keep_alive(&self, stopped: &[BrickId]) -> Result<()> {
        let info = AliveInfo { server: self.server, stopped: stopped.to_vec() };
        self.coordinator.keep(&alive_key(self.server), &text(&info)?, LEASE)
    }

    /// Ends this server's lease: it no longer serves.
    pub fn leave(&self) -> Result<()> {
        self.coordinator.keep(&alive_key(self.server), "", std::time::Duration::ZERO)
    }

    /// The servers whose lease has not expired.
    pub fn alive(&self) -> Result<Vec<AliveInfo>> {
        self.list("/alive/")
    }

    /// Records the endpoints of this server.
    pub fn announce(&self, endpoints: &[String]) -> Result<()> {
        let key = server_key(self.server);
        let moved = |info: &mut ServerInfo| std::mem::replace(&mut info.endpoints, endpoints.to_vec()) != endpoints;
        if self.update(&key, moved)?.is_some() {
            return Ok(());
        }
        self.put(&key, &ServerInfo { endpoints: endpoints.to_vec(), ..unheard(self.server) })
    }

    /// Records the incarnation and the number of openings of a brick that was opened.
    pub fn opened(&self, brick: BrickId, incarnation: Incarnation, openings: u32) -> Result<()> {
        let renewed = |info: &mut BrickInfo| {
            let before = std::mem::replace(info, BrickInfo { incarnation, openings, unopened: false, ..info.clone() });
            before != *info
        };
        self.update(&brick_key(brick), renewed).map(|_| ())
    }
}

fn server_key(server: ServerId) -> String {
    format!("/servers/{:010}", server.0)
}

fn alive_key(server: ServerId) -> String {
    format!("/alive/{:010}", server.0)
}

/// The record of a server that has never announced its endpoints.
fn unheard(server: ServerId) -> ServerInfo {
    ServerInfo { server, name: ServerInfo::name_of(server), endpoints: Vec::new() }
}
