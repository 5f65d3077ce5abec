//! Pairs a call without a key: gathers what is known of the identical ones, has it judged, and
//! claims what it is paired with.

use std::time::Duration;

use counterfoil_core::Timestamp;
use counterfoil_store::{Error, Store, read, transact};

use super::{
    CallDigest, Deliveries, Delivery, Inner, KeylessCall, Pairing, TURN_PATIENCE, TURNS,
    judge::{Earlier, Handing, New, Verdict, judge},
    key,
    memory::Entry,
    scene::{Scene, Seen},
    standing::mutated_since,
    table::{self, Expected, First, Known, Place},
};
use crate::settings::Keyless;

/// How often a call is judged again after another was quicker to claim what it was paired with.
const CLAIMS_MAX: usize = 8;
/// How long a connection that ended may go unnoticed. A client that gives up by closing its
/// connection and calls again on another at once would otherwise be taken for two.
const UNNOTICED_MAX: Duration = Duration::from_millis(100);
/// How often a claim is repeated whose commit is unknown.
const SETTLE_TRIES: usize = 3;

impl Deliveries {
    /// What a call without a key gets, and the handing out of its answer. Waits while an identical
    /// call of this process reserves its key.
    ///
    /// # Errors
    /// What the store says; [`Error::Busy`] too if an identical call takes longer than ten seconds
    /// for its reservation. Nothing was done.
    pub(crate) async fn pair(
        &self,
        call: &KeylessCall,
        now: Timestamp,
    ) -> Result<(Pairing, Delivery), Error> {
        let turn = self.inner.turn(call.digest).await?;
        let mut has_waited = false;
        for tries in 1..=CLAIMS_MAX {
            let mut scene = self.inner.gather(call, now).await?;
            self.inner.note(std::mem::take(&mut scene.leftovers));
            let verdict = match call.keyless {
                Keyless::Mint => Verdict::Run,
                Keyless::Attach | Keyless::Ask | Keyless::Require => {
                    self.inner.judged(call, &mut scene, now).await?
                }
            };
            let place = match verdict {
                Verdict::Run
                    if call.keyless != Keyless::Mint
                        && !has_waited
                        && !call.is_ordered
                        && scene.is_live() =>
                {
                    has_waited = true;
                    tokio::time::sleep(UNNOTICED_MAX).await;
                    continue;
                }
                Verdict::Run => {
                    if call.keyless != Keyless::Mint
                        && let Some(operation_id) = scene.crowded
                    {
                        return Ok((Pairing::Ask(operation_id), Delivery::nothing(self)));
                    }
                    let entry = self.inner.new_run(call, &scene, now)?;
                    let key = entry.known.place.key.clone();
                    return Ok((Pairing::Run(key), Delivery::prepared(self, entry, turn)));
                }
                Verdict::Attach(place) if tries < CLAIMS_MAX => place,
                Verdict::Attach(place) | Verdict::Ask(place) | Verdict::Look(place) => {
                    let asked = scene.seen.get(place).map(|seen| seen.receipt.operation_id);
                    let operation_id = asked.ok_or(Error::NotFound)?;
                    return Ok((Pairing::Ask(operation_id), Delivery::nothing(self)));
                }
            };
            let seen = scene.seen.get(place).ok_or(Error::NotFound)?;
            if let Some(paired) = self.claim(call, seen, now).await? {
                return Ok(paired);
            }
        }
        Err(Error::Busy {
            retry_after: Duration::from_secs(1),
        })
    }

    /// Whether it would be paired, as things stand. Nothing is claimed.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) async fn would_attach(
        &self,
        call: &KeylessCall,
        now: Timestamp,
    ) -> Result<bool, Error> {
        if call.keyless != Keyless::Attach {
            return Ok(false);
        }
        let mut scene = self.inner.gather(call, now).await?;
        let verdict = self.inner.judged(call, &mut scene, now).await?;
        Ok(matches!(verdict, Verdict::Attach(_)))
    }

    /// Claims the answer of `seen` for `call`, in one transaction; `None` if another was quicker.
    async fn claim(
        &self,
        call: &KeylessCall,
        seen: &Seen,
        now: Timestamp,
    ) -> Result<Option<(Pairing, Delivery)>, Error> {
        let claim = Known {
            place: seen.known.place.clone(),
            holder: self.inner.holder(),
            paired: true,
            channel: call.channel,
            handing: Handing::Open,
            started_at: now,
        };
        let expected = Expected {
            own: seen.number.map(|_| seen.known.holder),
            row: seen.row,
        };
        // Nothing of this place is written between the claim and the moment it is known here. And
        // what came before it is written first: no number may be found without those below it.
        let no_other_writes = self.inner.writing.lock().await;
        self.inner.write_all(&no_other_writes).await?;
        let store = self.inner.engine.store().as_ref();
        let mut tries = 0;
        let won = loop {
            tries += 1;
            let row = claim.clone();
            let step = transact(store, None, move |tx| {
                let row = row.clone();
                Box::pin(async move { table::claim(tx, &row, &expected).await })
            });
            match step.await {
                // Its own claim is recognized when it is repeated.
                Err(Error::CommitUnknown) if tries < SETTLE_TRIES => {}
                done => break done?,
            }
        };
        if !won {
            self.inner.look_again(store, seen).await?;
            return Ok(None);
        }
        let Place { key, operation, .. } = claim.place.clone();
        let mut entry = Entry::new(claim, First::There);
        entry.recorded = true;
        let delivery = Delivery::registered(self, entry);
        Ok(Some((Pairing::Attach { key, operation }, delivery)))
    }
}

impl Inner {
    async fn turn(&self, digest: CallDigest) -> Result<tokio::sync::OwnedMutexGuard<()>, Error> {
        let busy = Error::Busy {
            retry_after: Duration::from_secs(1),
        };
        let lane = self.turns.get(usize::from(digest.0[0]) % TURNS);
        let lane = lane.ok_or_else(|| busy.clone())?;
        tokio::time::timeout(TURN_PATIENCE, std::sync::Arc::clone(lane).lock_owned())
            .await
            .map_err(|_elapsed| busy)
    }

    /// Judges, looking for mutations where the judgement depends on it.
    async fn judged(
        &self,
        call: &KeylessCall,
        scene: &mut Scene,
        now: Timestamp,
    ) -> Result<Verdict, Error> {
        let new = self.new_call(call, now);
        loop {
            let earlier: Vec<Earlier> = scene.seen.iter().map(Seen::earlier).collect();
            let verdict = judge(&earlier, &new, &self.windows);
            let Verdict::Look(place) = verdict else {
                return Ok(verdict);
            };
            let seen = scene.seen.get_mut(place).ok_or(Error::NotFound)?;
            let store = self.engine.store().as_ref();
            seen.mutated_since = Some(mutated_since(store, call, &seen.receipt).await?);
        }
    }

    pub(super) fn new_call(&self, call: &KeylessCall, now: Timestamp) -> New {
        New {
            channel: call.channel,
            now,
            annotated: call.annotated,
            may_attach: call.keyless == Keyless::Attach,
        }
    }

    /// The first handing out of a call that runs under a key of its own.
    fn new_run(&self, call: &KeylessCall, scene: &Scene, now: Timestamp) -> Result<Entry, Error> {
        let known = Known {
            place: Place {
                digest: call.digest,
                operation: call.operation.clone(),
                key: key(call.digest, scene.next)?,
            },
            holder: self.holder(),
            paired: false,
            channel: call.channel,
            handing: Handing::Open,
            started_at: now,
        };
        Ok(Entry::new(known, First::Fresh))
    }

    /// Rows for calls of which only the receipt was found, so that they are found again however
    /// many follow. They are written before those that follow.
    fn note(&self, leftovers: Vec<Known>) {
        if leftovers.is_empty() {
            return;
        }
        self.remember(|memory| {
            for known in leftovers {
                let mut entry = Entry::new(known, First::Fresh);
                entry.recorded = true;
                entry.held = false;
                memory.add(entry);
            }
        });
        self.wake.soon();
    }

    /// What the memory said of a call was overtaken by another process: the row counts from now.
    async fn look_again(&self, store: &dyn Store, seen: &Seen) -> Result<(), Error> {
        let Some(number) = seen.number else {
            return Ok(());
        };
        let place = seen.known.place.clone();
        let row = read(store, move |sql| {
            let place = place.clone();
            Box::pin(async move { table::read_one(sql, &place).await })
        })
        .await?;
        if row.is_some_and(|row| row.holder != seen.known.holder) {
            self.remember(|memory| memory.lose(number));
        }
        Ok(())
    }
}
