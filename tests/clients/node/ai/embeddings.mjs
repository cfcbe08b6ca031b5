import { embedMany } from "ai";
import { provider } from "./provider.mjs";

const { embeddings } = await embedMany({
  model: provider.embeddingModel(process.env.MODEL),
  values: ["river", "stone"],
});

console.log(JSON.stringify(embeddings.map((one) => one.length)));
