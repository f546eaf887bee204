"""Two machines with addresses and disks of their own train as one."""


def test_machines_that_see_one_folder_train_as_one_machine(cluster, alone):
    document = cluster.clone("shared", shared=True).retrain("train", "vit")
    assert document["weights"] == alone
