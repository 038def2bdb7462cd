-- The tables of a team's registry as they stand on its server: made by hand, before this workflow.
CREATE EXTENSION IF NOT EXISTS "uuid-ossp";

CREATE TABLE datasets (
    id uuid PRIMARY KEY DEFAULT uuid_generate_v4(),
    name text UNIQUE NOT NULL,
    created_by text NOT NULL,
    creation_location text NOT NULL,
    creation_time timestamptz DEFAULT now(),
    generation_start timestamptz,
    generation_end timestamptz,
    data_location text NOT NULL,
    generation_parameters jsonb NOT NULL,
    generation_status text,
    dataset_type text NOT NULL CHECK (dataset_type IN ('SFT', 'RL')),
    data_generation_hash text,
    hf_fingerprint text,
    hf_commit_hash text,
    num_tasks integer,
    last_modified timestamptz,
    updated_at timestamptz DEFAULT now()
);

CREATE TABLE agents (
    id uuid PRIMARY KEY DEFAULT uuid_generate_v4(),
    name text NOT NULL,
    agent_version_hash char(64),
    description text,
    updated_at timestamptz DEFAULT now()
);

CREATE TABLE models (
    id uuid PRIMARY KEY DEFAULT uuid_generate_v4(),
    name text NOT NULL,
    base_model_id uuid REFERENCES models (id),
    created_by text NOT NULL,
    creation_location text NOT NULL,
    creation_time timestamptz DEFAULT now(),
    dataset_id uuid REFERENCES datasets (id),
    dataset_names text,
    is_external boolean NOT NULL,
    weights_location text NOT NULL,
    wandb_link text,
    updated_at timestamptz DEFAULT now(),
    training_start timestamptz NOT NULL,
    training_end timestamptz,
    training_parameters jsonb NOT NULL,
    training_status text,
    agent_id uuid NOT NULL REFERENCES agents (id),
    training_type text CHECK (training_type IN ('SFT', 'RL')),
    traces_location_s3 text,
    description text
);

CREATE FUNCTION touch_updated_at() RETURNS trigger AS $$
BEGIN
    NEW.updated_at = clock_timestamp();
    RETURN NEW;
END;
$$ LANGUAGE plpgsql;

CREATE TRIGGER touch BEFORE UPDATE ON datasets FOR EACH ROW EXECUTE FUNCTION touch_updated_at();
CREATE TRIGGER touch BEFORE UPDATE ON agents FOR EACH ROW EXECUTE FUNCTION touch_updated_at();
CREATE TRIGGER touch BEFORE UPDATE ON models FOR EACH ROW EXECUTE FUNCTION touch_updated_at();
