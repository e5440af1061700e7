// Makes the server a replica set of one member, and creates the collections of the shop. May run again.
try {
    rs.status();
} catch (error) {
    if (error.codeName !== "NotYetInitialized") throw error;
    rs.initiate({ _id: "rs0", members: [{ _id: 0, host: "mongo:27017" }] });
}
while (!db.hello().isWritablePrimary) sleep(200);

const shop = db.getSiblingDB("shop");
// The workload writes both in one transaction, so both must exist.
for (const name of ["users", "outbox"]) {
    if (!shop.getCollectionNames().includes(name)) shop.createCollection(name);
}
shop.outbox.createIndex({ event_id: 1 }, { unique: true });
shop.outbox.createIndex({ created_at: 1, _id: 1 });
